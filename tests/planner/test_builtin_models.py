"""Shapes known by name: their published sizes, and what a pipeline's stages hold of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from exegpt_planner.builtin_models import BUILTIN_MODELS, builtin_model
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.model_spec import OptSpec, T5Spec, parse_model_spec

PAPER_DECODERS = {  # 12 L h^2 in billions and KV a token in MB, of float16
    "opt-13b": (12.6, 0.82),
    "gpt3-39b": (38.7, 1.57),
    "gpt3-101b": (100.7, 3.28),
    "gpt3-175b": (173.9, 4.72),
    "gpt3-341b": (339.7, 7.37),
}


def t5(**changes: Any) -> T5Spec:
    small: dict[str, Any] = {
        "architecture": "t5",
        "num_layers": 2,
        "num_encoder_layers": 3,
        "hidden": 32,
        "ffn": 48,
        "num_heads": 4,
        "num_kv_heads": 4,
        "head_dim": 6,
        "vocab": 101,
        "context": 64,
        "norm_eps": 1e-6,
        "tied_embeddings": True,
        "gated": False,
        "activation": "relu",
        "relative_buckets": 8,
        "relative_distance": 20,
    }
    return T5Spec.model_validate(small | changes)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("t5-11b", 11_307_321_344),
        ("opt-13b", 12_853_473_280),
        ("llama-3.1-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen2.5-32b", 32_763_876_352),
        ("mistral-7b", 7_248_023_552),
        ("gpt3-175b", 174_604_259_328),  # "175B" in arXiv 2005.14165, rounded up there
    ],
)
def test_a_built_in_model_has_its_published_size(name: str, parameters: int) -> None:
    assert builtin_model(name).num_parameters == parameters


@pytest.mark.parametrize("name", PAPER_DECODERS)
def test_the_papers_decoders_have_its_matrices_and_kv(name: str) -> None:
    billions, megabytes = PAPER_DECODERS[name]
    model = builtin_model(name)
    matrices = 12 * model.num_layers * model.hidden**2
    assert round(matrices / 1e9, 1) == billions
    # Biases and norms are 13 h a layer, no more.
    assert (
        model.num_layers * model.layer_parameters - matrices == 13 * model.num_layers * model.hidden
    )
    assert round(model.kv_bytes_per_token("float16") / 1e6, 2) == megabytes
    assert (model.hidden, model.ffn) == (model.num_heads * 128, 4 * model.hidden)


def test_a_built_in_gpt3_has_gpt3s_vocabulary_and_context() -> None:
    for name in ("gpt3-39b", "gpt3-101b", "gpt3-175b", "gpt3-341b"):
        model = builtin_model(name)
        assert isinstance(model, OptSpec)
        assert (model.vocab, model.context, model.tied_embeddings) == (50_257, 2048, True)


@pytest.mark.parametrize("name", BUILTIN_MODELS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_stages_of_a_pipeline_hold_the_whole_model(name: str, dtype: str) -> None:
    model = builtin_model(name)
    layers = model.num_layers * model.layer_weight_bytes(dtype)
    layers += model.num_encoder_layers * model.encoder_layer_weight_bytes(dtype)
    number = {"float16": 2, "float32": 4}[dtype]
    table = model.table_parameters * number
    ends = model.embedding_weight_bytes(dtype) + model.head_weight_bytes(dtype)
    assert layers + model.outside_weight_bytes(dtype) == model.weight_bytes(dtype)
    assert ends - model.outside_weight_bytes(dtype) == (table if model.tied_embeddings else 0)
    assert model.embedding_weight_bytes(dtype) >= table
    assert model.head_weight_bytes(dtype) >= table


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_a_built_in_model_reads_back_from_its_json(name: str) -> None:
    model = builtin_model(name)
    assert parse_model_spec(model.model_dump_json(), source="test") == model


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_only_an_encoder_decoder_does_not_sample_in_its_encode(name: str) -> None:
    model = builtin_model(name)
    assert model.encode_samples is (name != "t5-11b")
    assert bool(model.num_encoder_layers) is bool(model.encoder_layer_weight_bytes("float16"))
    assert ("num_encoder_layers" in model.model_dump()) is (name == "t5-11b")


def test_the_documented_models_are_these() -> None:
    page = (Path(__file__).parents[2] / "docs" / "hardware.md").read_text(encoding="utf-8")
    for name, model in BUILTIN_MODELS.items():
        kv = model.kv_bytes_per_token("float16") / 1e6
        assert f"| `{name}` | {model.num_parameters:,} | {kv:.2f} MB |" in page


def test_an_unknown_model_lists_the_nearest_and_all() -> None:
    with pytest.raises(InvalidSpec) as caught:
        builtin_model("gpt3-340b")
    (problem,) = caught.value.problems
    assert "did you mean 'gpt3-341b'?" in problem
    assert all(name in problem for name in BUILTIN_MODELS)


@pytest.mark.parametrize("gated", [False, True])
def test_parameters_are_those_of_a_real_t5(gated: bool) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    spec = t5(gated=gated)
    model = T5ForConditionalGeneration(
        T5Config(
            d_model=spec.hidden,
            d_ff=spec.ffn,
            d_kv=spec.head_dim,
            num_heads=spec.num_heads,
            num_layers=spec.num_encoder_layers,
            num_decoder_layers=spec.num_layers,
            vocab_size=spec.vocab,
            relative_attention_num_buckets=spec.relative_buckets,
            relative_attention_max_distance=spec.relative_distance,
            feed_forward_proj="gated-gelu" if gated else "relu",
        )
    )
    assert spec.num_parameters == sum(each.numel() for each in model.parameters())
    # Every layer but the first, which also holds the biases of relative positions.
    for stack, parameters in (
        (model.encoder, spec.encoder_layer_parameters),
        (model.decoder, spec.layer_parameters),
    ):
        assert parameters == sum(each.numel() for each in stack.block[1].parameters())
    cross = [
        each.numel()
        for name, each in model.decoder.block[1].named_parameters()
        if name.endswith(("EncDecAttention.k.weight", "EncDecAttention.v.weight"))
    ]
    assert (len(cross), sum(cross)) == (2, spec.cross_kv_parameters)


def test_an_untied_gated_t5_has_its_published_size() -> None:
    """T5 1.1 XXL."""
    model = t5(
        num_layers=24,
        num_encoder_layers=24,
        hidden=4096,
        ffn=10_240,
        num_heads=64,
        num_kv_heads=64,
        head_dim=64,
        vocab=32_128,
        relative_buckets=32,
        tied_embeddings=False,
        gated=True,
    )
    assert model.num_parameters == 11_135_332_352


def test_a_t5_holds_equal_kv_for_prompt_and_answer() -> None:
    model = builtin_model("t5-11b")
    assert model.kv_bytes_per_token_layer("float16") == 2 * 128 * 128 * 2
    assert model.kv_bytes_per_token("float16") == 24 * 65_536


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"num_encoder_layers": 0}, "greater than or equal to 1"),
        ({"num_kv_heads": 2}, "2 KV heads for 4 heads"),
        ({"end_tokens": (101,)}, "outside the vocabulary"),
    ],
)
def test_a_t5_that_is_none_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        t5(**changes)


def test_a_decoder_only_model_has_no_encoder_layers() -> None:
    fields = builtin_model("opt-13b").model_dump() | {"num_encoder_layers": 2}
    with pytest.raises(ValueError, match="num_encoder_layers = 2 in a decoder-only model"):
        OptSpec.model_validate(fields)
