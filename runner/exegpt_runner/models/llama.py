"""The Llama family: Llama 2 and 3, SmolLM2, Mistral without short windows, Qwen 2, 2.5 and 3.

The projections to query, key and value are one matrix. Gate and up are two: SiLU and the product then ride on their
multiplications, which beats one wide matrix by up to 20 % (1024 rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import embedding

from exegpt_planner.model_spec import LlamaSpec
from exegpt_runner.layers.attention import Attention, Heads
from exegpt_runner.layers.batch import Batch
from exegpt_runner.layers.linear import Linear, packs, padded, padded_sizes
from exegpt_runner.layers.norm import RMSNorm
from exegpt_runner.layers.rotary import frequencies
from exegpt_runner.models.model import COMPILED_ROWS, COMPILED_SAMPLED, LayerDone, skip
from exegpt_runner.weights import Checkpoint

_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaLayer:
    """One layer's weights."""

    input_norm: RMSNorm
    qkv: Linear  # (H + 2G) * D, E
    head_norm: RMSNorm | None  # of queries and keys; weight (H + G, D)
    output: Linear
    feed_norm: RMSNorm
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaModel:
    """Weights in memory and what they compute on packed rows."""

    spec: LlamaSpec
    dtype: torch.dtype
    embedding: Tensor
    layers: tuple[LlamaLayer, ...]
    norm: RMSNorm
    head: Linear
    heads: Heads

    def warm_up(self) -> None:
        """Has the products compiled for the numbers of rows to come (seconds in all): else the first steps pay."""
        if not packs(self.dtype):
            return
        layer = self.layers[0]  # the others' products are of the same shapes
        for num_rows in padded_sizes(COMPILED_ROWS):
            x = torch.zeros(num_rows, self.spec.hidden, dtype=self.dtype)
            queries = layer.qkv(x)[:, : self.spec.num_heads * self.spec.head_dim].contiguous()
            layer.output.add(queries, x)
            self._feed_forward(layer, x)
            if num_rows <= COMPILED_SAMPLED:
                self.logits(x)

    def embed(self, batch: Batch) -> Tensor:
        """The rows that go into the layers, (T, E)."""
        return embedding(batch.tokens, self.embedding)

    def run_layers(
        self, x: Tensor, batch: Batch, kv: Sequence[Tensor], has_kv: LayerDone = skip
    ) -> Tensor:
        """All layers on packed rows; writes their keys and values to `kv`, (2, G, C, D) a layer. x: (T, E).

        `has_kv(layer)` is called as soon as a layer's are written, before the rest of the layer runs.
        """
        attention = Attention(self.heads, batch, self.dtype)
        num_tokens, x = len(x), padded(x, self.dtype)
        for index, (layer, layer_kv) in enumerate(zip(self.layers, kv, strict=True)):
            x = self._attention(layer, x, attention, layer_kv)
            has_kv(index)
            x = self._feed_forward(layer, x)
        return x[:num_tokens]

    def logits(self, x: Tensor) -> Tensor:
        """x: (T, E) after the layers; returns (T, V)."""
        return self.head(self.norm(padded(x, self.dtype)))[: len(x)]

    def _attention(self, layer: LlamaLayer, x: Tensor, attention: Attention, kv: Tensor) -> Tensor:
        H, G, D = self.spec.num_heads, self.spec.num_kv_heads, self.spec.head_dim
        qkv = layer.qkv(layer.input_norm(x)).view(-1, H + 2 * G, D)
        if layer.head_norm is not None:
            turned = qkv[:, : H + G]
            turned.copy_(layer.head_norm(turned))
        return layer.output.add(attention(qkv, kv), x)

    def _feed_forward(self, layer: LlamaLayer, x: Tensor) -> Tensor:
        normalised = layer.feed_norm(x)
        gate = layer.gate.activated(normalised, "silu")  # (T, F)
        return layer.down.add(layer.up.multiply(normalised, gate), x)


def load(folder: Path, spec: LlamaSpec, dtype: torch.dtype) -> LlamaModel:
    """The model in `folder`, in memory as `dtype`."""
    with Checkpoint(folder) as checkpoint:
        tied_head = frozenset({"lm_head.weight"} if spec.tied_embeddings else ())
        checkpoint.check(expected_shapes(spec), ignored=tied_head)
        loader = _Loader(checkpoint, spec, dtype)
        table = loader.tensor("model.embed_tokens.weight")
        head = table if spec.tied_embeddings else loader.tensor("lm_head.weight")
        return LlamaModel(
            spec=spec,
            dtype=dtype,
            embedding=table,
            layers=tuple(loader.layer(index) for index in range(spec.num_layers)),
            norm=loader.norm("model.norm"),
            head=Linear(head),
            heads=Heads.of(
                spec.num_heads, spec.num_kv_heads, spec.head_dim, frequencies(spec), dtype
            ),
        )


def expected_shapes(spec: LlamaSpec) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of the checkpoint."""
    E, F = spec.hidden, spec.ffn
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    matrices = {
        "self_attn.q_proj": (queries, E),
        "self_attn.k_proj": (keys, E),
        "self_attn.v_proj": (keys, E),
        "self_attn.o_proj": (E, queries),
        "mlp.gate_proj": (F, E),
        "mlp.up_proj": (F, E),
        "mlp.down_proj": (E, F),
    }
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (E,),
        "post_attention_layernorm.weight": (E,),
    }
    for name, shape in matrices.items():
        layer[f"{name}.weight"] = shape
        if _has_bias(spec, name):
            layer[f"{name}.bias"] = shape[:1]
    if spec.qk_norm:
        layer |= {f"self_attn.{name}.weight": (spec.head_dim,) for name in ("q_norm", "k_norm")}
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (spec.vocab, E),
        "model.norm.weight": (E,),
    }
    if not spec.tied_embeddings:
        shapes["lm_head.weight"] = (spec.vocab, E)
    for index in range(spec.num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def _has_bias(spec: LlamaSpec, name: str) -> bool:
    """Whether the matrix of this name has one."""
    if name == "self_attn.o_proj":
        return spec.output_bias
    return spec.qkv_bias if name.startswith("self_attn") else spec.mlp_bias


@dataclass(frozen=True, slots=True)
class _Loader:
    checkpoint: Checkpoint
    spec: LlamaSpec
    dtype: torch.dtype

    def tensor(self, name: str) -> Tensor:
        return self.checkpoint.load(name, self.dtype)

    def norm(self, name: str) -> RMSNorm:
        return RMSNorm(self.tensor(f"{name}.weight"), self.spec.norm_eps)

    def layer(self, index: int) -> LlamaLayer:
        prefix = f"model.layers.{index}"
        return LlamaLayer(
            input_norm=self.norm(f"{prefix}.input_layernorm"),
            qkv=self._fused(prefix, *_QKV),
            head_norm=self._head_norm(f"{prefix}.self_attn") if self.spec.qk_norm else None,
            output=self._fused(prefix, "self_attn.o_proj"),
            feed_norm=self.norm(f"{prefix}.post_attention_layernorm"),
            gate=self._fused(prefix, "mlp.gate_proj"),
            up=self._fused(prefix, "mlp.up_proj"),
            down=self._fused(prefix, "mlp.down_proj"),
        )

    def _head_norm(self, prefix: str) -> RMSNorm:
        query, key = (self.tensor(f"{prefix}.{name}.weight") for name in ("q_norm", "k_norm"))
        weight = [query.expand(self.spec.num_heads, -1), key.expand(self.spec.num_kv_heads, -1)]
        return RMSNorm(torch.cat(weight), self.spec.norm_eps)

    def _fused(self, prefix: str, *names: str) -> Linear:
        weights = [self.tensor(f"{prefix}.{name}.weight") for name in names]
        has_bias = _has_bias(self.spec, names[0])
        biases = [self.tensor(f"{prefix}.{name}.bias") for name in names] if has_bias else None
        return Linear(torch.cat(weights), torch.cat(biases) if biases else None)
