"""Checkpoints: safetensors only, every fault named at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine_oracle import Oracle
from exegpt_planner.errors import InvalidSpec, Unavailable
from exegpt_planner.model_spec import LlamaSpec, OptSpec, read_model_spec
from exegpt_runner.models import opt
from exegpt_runner.models.llama import LlamaModel, load

PROBE = torch.eye(48, dtype=torch.float64)


@pytest.fixture
def folder(oracle: Oracle, tmp_path: Path) -> Path:
    return Path(shutil.copytree(oracle.folder, tmp_path / "model"))


def load_here(folder: Path, dtype: torch.dtype = torch.float64) -> LlamaModel:
    spec = read_model_spec(folder)
    assert isinstance(spec, LlamaSpec)
    return load(folder, spec, dtype)


def test_sharded_files_give_the_same_model(folder: Path, oracle: Oracle) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {name: f"part-{i % 3}.safetensors" for i, name in enumerate(tensors)}
    for file in set(weight_map.values()):
        save_file({n: t for n, t in tensors.items() if weight_map[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    model = load_here(folder)
    assert isinstance(oracle.model, LlamaModel)
    assert torch.equal(model.embedding, oracle.model.embedding)
    for layer, expected in zip(model.layers, oracle.model.layers, strict=True):
        assert torch.equal(layer.down(PROBE), expected.down(PROBE))
    (folder / "part-1.safetensors").unlink()
    with pytest.raises(Unavailable, match=r"lacks part-1\.safetensors"):
        load_here(folder)


def test_weights_are_converted_to_the_dtype_asked_for(folder: Path, oracle: Oracle) -> None:
    model = load_here(folder, torch.bfloat16)
    assert isinstance(oracle.model, LlamaModel)
    assert torch.equal(model.norm.weight, oracle.model.norm.weight.bfloat16())
    assert model.embedding.dtype == torch.bfloat16


def test_pickled_weights_are_refused_with_the_remedy(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(InvalidSpec, match=r"pytorch_model\.bin.*save_pretrained"):
        load_here(folder)


def test_a_folder_without_weights_says_what_is_missing(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(Unavailable, match=r"neither model\.safetensors nor"):
        load_here(folder)


def test_missing_surplus_and_misshaped_tensors_are_named_together(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.router.weight"] = torch.zeros(3)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)  # harmless
    tensors["lm_head.weight"] = torch.zeros(96, 32)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidSpec) as raised:
        load_here(folder)
    assert raised.value.problems == (
        "model.norm.weight is missing",
        "model.layers.0.mlp.router.weight is not a tensor of this architecture",
        "lm_head.weight has shape (96, 32), config.json says (97, 32)",
    )


def test_a_truncated_file_is_an_error_without_a_trace(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(Unavailable, match=r"cannot read .*model\.safetensors"):
        load_here(folder)


def test_integer_weights_are_refused(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = torch.ones(32, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidSpec, match=r"model\.norm\.weight is stored as torch\.int8"):
        load_here(folder)


def test_an_index_cannot_point_outside_its_folder(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder.parent / "model.safetensors")
    index = {"weight_map": {"model.norm.weight": "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises((InvalidSpec, Unavailable)):
        load_here(folder)


def test_a_gpt2_as_first_published_is_read(
    oracle_of: Callable[[str], Oracle], tmp_path: Path
) -> None:
    """Without the prefix, with its causal masks stored."""
    oracle = oracle_of("gpt2")
    folder = Path(shutil.copytree(oracle.folder, tmp_path / "gpt2"))
    tensors = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): each for name, each in tensors.items()}
    bare["h.0.attn.bias"] = torch.ones(1, 1, 512, 512)
    save_file(bare, folder / "model.safetensors")
    spec = read_model_spec(folder)
    assert isinstance(spec, OptSpec)
    x = torch.randn(3, spec.hidden, dtype=torch.float64)
    assert torch.equal(opt.load(folder, spec, torch.float64).logits(x), oracle.model.logits(x))
    save_file(bare | {"h.0.extra": torch.ones(1)}, folder / "model.safetensors")
    with pytest.raises(InvalidSpec, match=r"h\.0\.extra is not a tensor of this architecture"):
        opt.load(folder, spec, torch.float64)
