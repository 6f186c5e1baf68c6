"""Runs inside ctranslate2's own environment: a Llama folder behind its Generator, in batches.

    python peer_ctranslate2.py FOLDER --port 8000 --compute float32|int8

ctranslate2 has no bfloat16 on CPUs: float32 computes on the very weights (bf16 is exact in it), int8 on quantised ones.
It has no continuous batching: what waits becomes one batch, whose rows leave it as their answers end (the engine
itself drops them), and the next batch starts when the last has left. Prompts of unequal lengths are encoded together
up to the shortest; the rest of them is fed token by token, as the engine does it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import struct
import tempfile
import time
from pathlib import Path

import ctranslate2
import numpy as np
from ctranslate2.converters import utils
from ctranslate2.specs import common_spec, transformer_spec

from peer_http import Inbox, Piece, serve


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--compute", choices=("float32", "int8"), required=True)
    serve(work, options)


def work(inbox: Inbox, given: argparse.Namespace) -> None:
    generator = ctranslate2.Generator(
        str(converted(given.folder)),
        device="cpu",
        compute_type=given.compute,
        inter_threads=1,
        intra_threads=given.threads,
    )
    inbox.ready()
    while True:
        _answer(generator, inbox, given.most)


def _answer(generator: ctranslate2.Generator, inbox: Inbox, most: int) -> None:
    asks = inbox.wait(most)
    begun_s = time.monotonic()
    counts = [0] * len(asks)

    def on_token(step: ctranslate2.GenerationStepResult) -> bool:
        ask = asks[step.batch_id]
        counts[step.batch_id] += 1
        inbox.give([Piece(ask.number, step.token_id, begun_s)])
        return counts[step.batch_id] == ask.max_tokens

    longest = max(ask.max_tokens for ask in asks) + max(len(ask.prompt) for ask in asks)
    generator.generate_batch(
        [[word(token) for token in ask.prompt] for ask in asks],
        max_length=longest,  # each row is ended by on_token
        min_length=longest,  # no end token before
        sampling_topk=1,
        include_prompt_in_result=False,
        callback=on_token,
    )


def word(token: int) -> str:
    """ctranslate2 takes tokens as words: these are token ids."""
    return f"t{token}"


def converted(folder: Path) -> Path:
    """The folder's weights in ctranslate2's format, written once beside it."""
    target = folder.with_name(f"{folder.name}-ctranslate2")
    if not target.exists():
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            spec = _spec(json.loads((folder / "config.json").read_text()), _weights(folder))
            spec.validate()
            spec.save(str(made))
            _move(made, target)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    return target


def _move(made: Path, target: Path) -> None:
    try:
        os.replace(made, target)
    except OSError:
        if not target.exists():  # else the other server of this benchmark was faster
            raise


def _spec(
    config: dict, weights: dict[str, np.ndarray]
) -> transformer_spec.TransformerDecoderModelSpec:
    """As ctranslate2's own converter for Llama, which needs torch and transformers."""
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    spec = transformer_spec.TransformerDecoderModelSpec.from_config(
        config["num_hidden_layers"],
        heads,
        activation=common_spec.Activation.SWISH,
        pre_norm=True,
        ffn_glu=True,
        rms_norm=True,
        rotary_dim=0,
        rotary_interleave=False,
        rotary_base=config["rope_theta"],
        num_heads_kv=None if kv_heads == heads else kv_heads,
    )
    decoder = spec.decoder
    decoder.scale_embeddings = False
    decoder.embeddings.weight = weights["model.embed_tokens.weight"]
    decoder.layer_norm.gamma = weights["model.norm.weight"]
    decoder.projection.weight = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    for index, layer in enumerate(decoder.layer):
        _fill(layer, {
            name.removeprefix(f"model.layers.{index}.").removesuffix(".weight"): values
            for name, values in weights.items()
            if name.startswith(f"model.layers.{index}.")
        })  # fmt: skip
    spec.register_vocabulary([word(token) for token in range(config["vocab_size"])])
    spec.config.bos_token = word(config["bos_token_id"])
    spec.config.eos_token = word(config["eos_token_id"])
    spec.config.unk_token = word(0)
    spec.config.layer_norm_epsilon = config["rms_norm_eps"]
    return spec


def _fill(layer: object, weights: dict[str, np.ndarray]) -> None:
    layer.self_attention.layer_norm.gamma = weights["input_layernorm"]
    layer.ffn.layer_norm.gamma = weights["post_attention_layernorm"]
    split = [common_spec.LinearSpec() for _ in range(3)]
    for each, name in zip(split, "qkv", strict=True):
        each.weight = weights[f"self_attn.{name}_proj"]
    utils.fuse_linear(layer.self_attention.linear[0], split)
    layer.self_attention.linear[1].weight = weights["self_attn.o_proj"]
    layer.ffn.linear_0.weight = weights["mlp.gate_proj"]
    layer.ffn.linear_0_noact.weight = weights["mlp.up_proj"]
    layer.ffn.linear_1.weight = weights["mlp.down_proj"]


def _weights(folder: Path) -> dict[str, np.ndarray]:
    """bf16 tensors as float32, exactly; numpy itself has no bf16."""
    with (folder / "model.safetensors").open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = np.frombuffer(file.read(), np.uint16)
    weights = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise SystemExit(f"{folder}: {name} is {entry['dtype']}; this benchmark serves bf16")
        begin, end = (offset // 2 for offset in entry["data_offsets"])
        bits = data[begin:end].astype(np.uint32) << 16
        weights[name] = bits.view(np.float32).reshape(entry["shape"])
    return weights


if __name__ == "__main__":
    main()
