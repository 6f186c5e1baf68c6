"""The model's folder as every engine of the comparison can take it: one set of bf16 weights, one tokenizer, one GGUF.

The random Llama has no tokenizer of its own: it gets one whose tokens are made-up words, for engines stream text. The
GGUF holds the vocabulary, without which llama.cpp's server does not start.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

from bench_worker import model_folder
from exegpt_cli.cache import Cache
from write_gguf import write_gguf

LETTERS = "abcdefghijklmnopqrstuvwxyz"
CONTROL = ("<unk>", "<s>", "</s>")  # below the ids that prompts are drawn from


def served_folder(name: str, cache: Cache) -> Path:
    """The folder of "demo", "random" or a path, with a tokenizer."""
    folder = model_folder(name, cache)
    if not (folder / "tokenizer.json").exists():
        vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
        _write_tokenizer(folder, vocab)
    return folder


def gguf_of(folder: Path) -> Path:
    """The same weights for llama.cpp, written once beside the folder."""
    target = folder.with_name(f"{folder.name}-bf16-served.gguf")
    return write_gguf(folder, target, vocabulary=True)


def _write_tokenizer(folder: Path, vocab: int) -> None:
    words = (f"Ġ{''.join(letters)}" for letters in product(LETTERS, repeat=3))
    pieces = [*LETTERS, "Ġ", "ab"]  # with the one merge that a byte-pair vocabulary needs at least
    texts = [*CONTROL, *pieces, *(next(words) for _ in range(vocab - len(CONTROL) - len(pieces)))]
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    model = models.BPE(vocab={text: index for index, text in enumerate(texts)}, merges=[("a", "b")])
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in CONTROL])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": CONTROL[0],
        "bos_token": CONTROL[1],
        "eos_token": CONTROL[2],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
