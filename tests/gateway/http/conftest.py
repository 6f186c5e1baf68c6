from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from exegpt_gateway.chat_template import load_chat_template
from exegpt_gateway.served import ServedModel
from exegpt_gateway.tokenizer import load_tokenizer
from gateway.http.front_door import Door, open_door

TEXT = [
    "The quick brown fox jumps over the lazy dog. The capital of France is Paris.",
    "你好，世界。今天天气很好。こんにちは世界。안녕하세요.",
    "Emoji: 😀😃🎉🚀👩‍👩‍👧 and naïve café Ünïcödé.",
    "def add(a, b):\n    return a + b\n",
] * 4
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def train_byte_level() -> tokenizers.Tokenizer:
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(TEXT, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    return inner


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    train_byte_level().save(str(folder / "tokenizer.json"))
    config = {
        "bos_token": "<|endoftext|>",
        "eos_token": {"content": "<|im_end|>", "lstrip": False},
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="session")
def served(model_folder: Path) -> ServedModel:
    tokenizer = load_tokenizer(model_folder)
    return ServedModel(
        name="tiny",
        tokenizer=tokenizer,
        chat_template=load_chat_template(model_folder, special_texts=tokenizer.special_texts),
        context=256,
        vocab=400,
        end_tokens=(2,),
        bos_token=0,
    )


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_door(served: ServedModel) -> AsyncIterator[Door]:
    """One server for all tests that leave it up: starting and ending one takes 0.3 s."""
    async with open_door(served) as opened:
        yield opened


@pytest.fixture
def door(shared_door: Door) -> Door:
    shared_door.conductor.reset()
    return shared_door
