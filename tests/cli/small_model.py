"""A tiny random Llama with a byte-level tokenizer and a chat template, in a Hugging Face folder."""

from __future__ import annotations

import json
from pathlib import Path

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

from tiny_models import write_model

SPECIAL = ["<pad>", "<|begin|>", "<|end|>"]  # ids 0, 1, 2, as the tiny models' configuration says
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def write_small_model(folder: Path) -> Path:
    """The folder of a model that answers any bytes with random ones, always the same."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *alphabet])}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.add_special_tokens(SPECIAL)
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    write_model(folder, dtype=torch.float32, vocab_size=len(vocabulary))
    inner.save(str(folder / "tokenizer.json"))
    config = {"bos_token": SPECIAL[1], "eos_token": SPECIAL[2], "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder
