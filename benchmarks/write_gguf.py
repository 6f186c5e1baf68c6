"""A Hugging Face Llama folder as a bf16 GGUF: the same weights for llama.cpp.

Without a vocabulary it is fed with token ids through the library; llama.cpp's server wants the vocabulary too.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from safetensors.torch import load_file

NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def write_gguf(folder: Path, target: Path, *, vocabulary: bool = False) -> Path:
    """Writes `target` from the weights in `folder`, once; returns it."""
    if target.exists():
        return target
    config = json.loads((folder / "config.json").read_text())
    partial = target.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    _metadata(writer, config)
    if vocabulary:
        _vocabulary(writer, folder, config)
    else:
        writer.add_tokenizer_model("no_vocab")
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float().numpy()
        for projection, heads in (
            ("q_proj", config["num_attention_heads"]),
            ("k_proj", config["num_key_value_heads"]),
        ):
            if projection in name:
                values = _interleave(values, heads)
        if values.ndim == 1:
            writer.add_tensor(_gguf_name(name), values)
        else:
            bits = (values.view(np.uint32) >> 16).astype(np.uint16)  # exact: they were bf16
            writer.add_tensor(
                _gguf_name(name), bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return partial.rename(target)


def _metadata(writer: gguf.GGUFWriter, config: dict) -> None:
    rope = config.get("rope_parameters") or config
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def _vocabulary(writer: gguf.GGUFWriter, folder: Path, config: dict) -> None:
    """A byte-pair vocabulary, as in `tokenizer.json`."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = {each["id"]: each["content"] for each in tokenizer["added_tokens"]}
    texts = {index: text for text, index in tokenizer["model"]["vocab"].items()} | added
    size = config["vocab_size"]
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([texts.get(index, f"<unused{index}>") for index in range(size)])
    writer.add_token_types([control if index in added else normal for index in range(size)])
    merges = tokenizer["model"]["merges"]
    writer.add_token_merges([each if isinstance(each, str) else " ".join(each) for each in merges])
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_add_bos_token(False)


def _interleave(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows in GGUF's rotary order: halves of a head interleaved."""
    rows, columns = weight.shape
    return np.ascontiguousarray(
        weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2)
    ).reshape(rows, columns)


def _gguf_name(name: str) -> str:
    if name in OUTER:
        return OUTER[name]
    _, _, layer, *rest = name.removesuffix(".weight").split(".")
    return f"blk.{layer}.{NAMES['.'.join(rest)]}.weight"
