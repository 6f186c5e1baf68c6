"""Model folders: exact sizes against `transformers`, and refusal of everything the engine does not compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from exegpt_planner.errors import InvalidSpec, Unavailable, UnsupportedModel
from exegpt_planner.model_spec import (
    LinearRopeScaling,
    Llama3RopeScaling,
    LlamaSpec,
    read_model_spec,
)

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
SMALL_OPT: dict[str, Any] = {
    "hidden_size": 48,
    "ffn_dim": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "vocab_size": 101,
    "max_position_embeddings": 256,
}
SMALL_GPT2: dict[str, Any] = {
    "n_embd": 48,
    "n_layer": 3,
    "n_head": 6,
    "vocab_size": 101,
    "n_positions": 256,
}
MISTRAL = LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": None}
LLAMA3: dict[str, Any] = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


def read(
    folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None
) -> LlamaSpec:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    spec = read_model_spec(folder)
    assert isinstance(spec, LlamaSpec)
    return spec


def refusal(folder: Path, **changes: Any) -> tuple[str, ...]:
    with pytest.raises(UnsupportedModel) as caught:
        read(folder, LLAMA | changes)
    return caught.value.problems


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("head_dim", [None, 12])
def test_parameters_are_those_of_a_real_llama(
    tmp_path: Path, tied: bool, bias: bool, head_dim: int | None
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **{key: value for key, value in LLAMA.items() if key != "architectures"},
        tie_word_embeddings=tied,
        attention_bias=bias,
        mlp_bias=bias,
        head_dim=head_dim,
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    model = LlamaForCausalLM(config)
    spec = read_model_spec(tmp_path)
    assert spec.num_parameters == sum(each.numel() for each in model.parameters())
    layer = model.model.layers[0]
    assert spec.layer_parameters == sum(each.numel() for each in layer.parameters())
    assert spec.tied_embeddings is tied
    assert spec.head_dim == (head_dim or 8)


@pytest.mark.parametrize("bias", [False, True])
def test_parameters_are_those_of_a_real_qwen3(tmp_path: Path, bias: bool) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    fields = {key: value for key, value in LLAMA.items() if key != "architectures"}
    config = Qwen3Config(**fields, head_dim=12, attention_bias=bias)
    config.architectures = ["Qwen3ForCausalLM"]
    config.save_pretrained(tmp_path)
    model = Qwen3ForCausalLM(config)
    spec = read_model_spec(tmp_path)
    assert spec.num_parameters == model.num_parameters()
    layer = model.model.layers[0]
    assert spec.layer_parameters == sum(each.numel() for each in layer.parameters())
    assert spec.head_dim == 12


def test_parameters_are_those_of_a_real_qwen2(tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    fields = {key: value for key, value in LLAMA.items() if key != "architectures"}
    config = Qwen2Config(**fields, tie_word_embeddings=True)
    config.architectures = ["Qwen2ForCausalLM"]
    config.save_pretrained(tmp_path)
    assert read_model_spec(tmp_path).num_parameters == Qwen2ForCausalLM(config).num_parameters()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"enable_bias": False, "tie_word_embeddings": False},
        {"do_layer_norm_before": False, "word_embed_proj_dim": 24},  # OPT 350m
        {"_remove_final_layer_norm": True},
    ],
)
def test_parameters_are_those_of_a_real_opt(tmp_path: Path, changes: dict[str, Any]) -> None:
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(**SMALL_OPT, **changes)
    config.architectures = ["OPTForCausalLM"]
    config.save_pretrained(tmp_path)
    model = OPTForCausalLM(config)
    spec = read_model_spec(tmp_path)
    assert spec.num_parameters == model.num_parameters()
    layer = model.model.decoder.layers[0]
    assert spec.layer_parameters == sum(each.numel() for each in layer.parameters())
    assert spec.kv_bytes_per_token("bfloat16") == 2 * 3 * 48 * 2


def test_parameters_are_those_of_a_real_gpt2(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=101, n_embd=48, n_layer=3, n_head=6, n_positions=256)
    config.bos_token_id = config.eos_token_id = 2
    config.architectures = ["GPT2LMHeadModel"]
    config.save_pretrained(tmp_path)
    spec = read_model_spec(tmp_path)
    assert (spec.ffn, spec.context, spec.end_tokens) == (192, 256, (2,))
    assert spec.num_parameters == GPT2LMHeadModel(config).num_parameters()


@pytest.mark.parametrize(
    ("architecture", "changes", "reason"),
    [
        ("OPTForCausalLM", {"activation_function": "gelu"}, "activation_function = 'gelu'; supported is 'relu'"),
        ("OPTForCausalLM", {"layer_norm_elementwise_affine": False}, "layer_norm_elementwise_affine = False"),
        ("OPTForCausalLM", {"quantization_config": {"quant_method": "gptq"}}, "quantised weights"),
        ("OPTForCausalLM", {"num_attention_heads": 16}, "heads of 3 numbers, which is odd"),
        ("GPT2LMHeadModel", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx = True"),
        ("GPT2LMHeadModel", {"add_cross_attention": True}, "add_cross_attention = True"),
    ],
)  # fmt: skip
def test_what_an_opt_or_gpt2_asks_for_beyond_the_engine_is_refused_by_name(
    tmp_path: Path, architecture: str, changes: dict[str, Any], reason: str
) -> None:
    fields = SMALL_OPT if architecture == "OPTForCausalLM" else SMALL_GPT2
    (tmp_path / "config.json").write_text(
        json.dumps(fields | {"architectures": [architecture]} | changes)
    )
    with pytest.raises(UnsupportedModel) as caught:
        read_model_spec(tmp_path)
    assert reason in "; ".join(caught.value.problems)


def test_a_window_that_a_qwen_names_and_does_not_use_is_no_window(tmp_path: Path) -> None:
    """As its published config.json has it."""
    named = {"sliding_window": 128, "max_window_layers": 3, "use_sliding_window": False}
    spec = read(tmp_path, LLAMA | {"architectures": ["Qwen2ForCausalLM"]} | named)
    assert (spec.architecture, spec.qkv_bias, spec.output_bias) == ("qwen2", True, False)
    with pytest.raises(UnsupportedModel, match="sliding_window 128, shorter"):
        read(
            tmp_path,
            LLAMA | {"architectures": ["Qwen2ForCausalLM"]} | named | {"use_sliding_window": True},
        )


def test_a_qwen3_without_head_dim_is_not_guessed(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="head_dim: missing"):
        read(tmp_path, LLAMA | {"architectures": ["Qwen3ForCausalLM"]})


def test_parameters_are_those_of_a_real_mistral(tmp_path: Path) -> None:
    from transformers import MistralConfig, MistralForCausalLM

    config = MistralConfig(
        **{key: value for key, value in MISTRAL.items() if key != "architectures"}
    )
    config.architectures = ["MistralForCausalLM"]
    config.save_pretrained(tmp_path)
    spec = read_model_spec(tmp_path)
    assert spec.architecture == "mistral"
    assert spec.num_parameters == MistralForCausalLM(config).num_parameters()


@pytest.mark.parametrize("scaling", [None, LLAMA3, {"rope_type": "linear", "factor": 2.0}])
def test_rotary_settings_written_by_transformers_are_read(
    tmp_path: Path, scaling: dict[str, Any] | None
) -> None:
    from transformers import LlamaConfig

    fields = {key: value for key, value in LLAMA.items() if key != "architectures"}
    config = LlamaConfig(
        **fields, rope_parameters=(scaling or {"rope_type": "default"}) | {"rope_theta": 5e5}
    )
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    new = read_model_spec(tmp_path)
    assert isinstance(new, LlamaSpec)
    old = read(tmp_path, LLAMA | {"rope_theta": 5e5, "rope_scaling": scaling})
    assert new.rope_theta == 5e5
    assert new.model_dump() == old.model_dump()


def test_bytes_follow_from_the_shape(tmp_path: Path) -> None:
    spec = read(tmp_path, LLAMA)
    assert spec.kv_bytes_per_token("bfloat16") == 2 * 3 * 2 * 8 * 2
    assert spec.kv_bytes_per_token("float32") == 2 * spec.kv_bytes_per_token("float16")
    assert spec.weight_bytes("float64") == 8 * spec.num_parameters
    outside = spec.num_parameters - 3 * spec.layer_parameters
    assert outside == 2 * 101 * 48 + 48
    assert 3 * spec.layer_weight_bytes("bfloat16") == spec.weight_bytes("bfloat16") - 2 * outside
    with pytest.raises(InvalidSpec, match="'int8' is not known; use one of bfloat16"):
        spec.weight_bytes("int8")


def test_absent_fields_mean_what_transformers_takes_them_to_mean(tmp_path: Path) -> None:
    config = {key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}
    spec = read(tmp_path, config)
    assert (spec.num_kv_heads, spec.head_dim) == (6, 8)
    assert (spec.rope_theta, spec.rope_scaling, spec.norm_eps) == (1e4, None, 1e-6)
    assert not spec.tied_embeddings


def test_both_rotary_types_are_kept(tmp_path: Path) -> None:
    assert read(tmp_path, LLAMA | {"rope_scaling": LLAMA3}).rope_scaling == Llama3RopeScaling(
        factor=8, low_freq_factor=1, high_freq_factor=4, original_context=128
    )
    old = {"type": "linear", "factor": 2}
    assert read(tmp_path, LLAMA | {"rope_scaling": old}).rope_scaling == LinearRopeScaling(factor=2)


@pytest.mark.parametrize(
    ("config_end", "generation", "tokens"),
    [
        (2, None, (2,)),
        ([2, 5, 2], None, (2, 5)),
        (2, {"eos_token_id": [7, 8]}, (7, 8)),
        (2, {"temperature": 0.7}, (2,)),
        (None, None, ()),
    ],
)
def test_end_tokens_come_from_the_generation_config_first(
    tmp_path: Path, config_end: Any, generation: dict[str, Any] | None, tokens: tuple[int, ...]
) -> None:
    assert read(tmp_path, LLAMA | {"eos_token_id": config_end}, generation).end_tokens == tokens


def test_the_fingerprint_is_the_shapes(tmp_path: Path) -> None:
    spec = read(tmp_path, LLAMA)
    assert read(tmp_path, LLAMA | {"eos_token_id": 9}).fingerprint == spec.fingerprint
    assert read(tmp_path, LLAMA | {"num_hidden_layers": 4}).fingerprint != spec.fingerprint
    assert read(tmp_path, LLAMA | {"rope_scaling": LLAMA3}).fingerprint != spec.fingerprint


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"architectures": ["MixtralForCausalLM"]}, "'MixtralForCausalLM'; supported are LlamaForCausalLM, Mistral"),
        ({"architectures": None}, "no architecture is named"),
        ({"architectures": ["LlamaForCausalLM", "OtherModel"]}, "architecture ['LlamaForCausalLM', 'OtherModel']"),
        ({"num_local_experts": 8}, "mixture of experts (num_local_experts = 8)"),
        ({"kv_lora_rank": 512}, "latent attention (kv_lora_rank = 512)"),
        ({"sliding_window": 128}, "sliding_window 128, shorter than the context of 256"),
        ({"sliding_window": "4096"}, "sliding_window 4096, shorter than"),
        ({"layer_types": 3}, "layer_types"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised weights"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor = 0.5"),
        ({"attn_logit_softcapping": 30.0}, "attn_logit_softcapping = 30.0"),
        ({"head_dim": 7}, "head_dim 7 is odd"),
        ({"num_key_value_heads": 4}, "6 heads are no multiple of 4 KV heads"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2}}, "'dynamic'; supported are default, linear, llama3"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2}}, "rotary scaling 'yarn'"),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 2}}, "rotary scaling 'longrope'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2}}, "rotary scaling 'yarn'"),
        ({"rope_scaling": LLAMA3 | {"attention_factor": 1.2}}, "attention_factor with rotary scaling 'llama3'"),
        ({"rope_scaling": LLAMA3, "original_max_position_embeddings": 64}, "unlike the one beside rope_scaling"),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "full_attention with rotary"),
    ],
)  # fmt: skip
def test_what_the_engine_does_not_compute_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    assert reason in "; ".join(refusal(tmp_path, **changes))


def test_every_reason_is_listed_at_once(tmp_path: Path) -> None:
    problems = refusal(
        tmp_path,
        architectures=["DeepseekV3ForCausalLM"],
        n_routed_experts=256,
        kv_lora_rank=512,
        quantization_config={"quant_method": "fp8"},
        vocab_size=None,
    )
    assert len(problems) == 5
    assert problems[-1] == "vocab_size: missing"


@pytest.mark.parametrize("window", [None, 256, 4096])
def test_a_window_as_long_as_the_context_changes_nothing(
    tmp_path: Path, window: int | None
) -> None:
    assert read(tmp_path, MISTRAL | {"sliding_window": window}).context == 256


def test_a_silent_mistral_has_transformers_window(tmp_path: Path) -> None:
    silent = {key: value for key, value in MISTRAL.items() if key != "sliding_window"}
    assert read(tmp_path, silent | {"max_position_embeddings": 4096}).context == 4096
    with pytest.raises(UnsupportedModel, match="sliding_window 4096, the default of a Mistral"):
        read(tmp_path, silent | {"max_position_embeddings": 32_768})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden_size": None}, "hidden_size: missing"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: expected a whole number of at least 1 (given: 0)"),
        ({"vocab_size": "many"}, "vocab_size: expected a whole number of at least 1 (given: 'many')"),
        ({"rms_norm_eps": -1}, "rms_norm_eps: expected a positive number (given: -1)"),
        ({"attention_bias": "yes"}, "attention_bias: expected true or false (given: 'yes')"),
        ({"eos_token_id": "</s>"}, "eos_token_id: expected a token id or a list of them (given: '</s>')"),
        ({"hidden_size": 50}, "hidden_size 50 is no multiple of 6 heads and head_dim is missing"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.factor: missing"),
        ({"rope_scaling": "linear"}, "rope_scaling: expected an object (given: 'linear')"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_with_its_value(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidSpec) as caught:
        read(tmp_path, LLAMA | changes)
    assert caught.value.problems == (problem,)


def test_tokens_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match=r"special tokens \[101, -1\] lie outside the vocab"):
        read(tmp_path, LLAMA | {"eos_token_id": [2, 101, -1]})


def test_a_folder_that_is_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no model folder at"):
        read_model_spec(tmp_path / "none")
    with pytest.raises(Unavailable, match=r"has no config\.json"):
        read_model_spec(tmp_path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{", "not JSON"), ("[]", "expected a JSON object"), ("\xff", "not UTF-8 text")],
)
def test_a_config_that_is_no_json_object_says_so(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidSpec, match=problem):
        read_model_spec(tmp_path)
