"""OPT and GPT-2 (GPT-3's shape): learned positions, layer norms, a feed-forward of two matrices.

The two differ in their activation, in the names of their tensors, and in that GPT-2 stores its matrices transposed. OPT
350m alone normalises what comes out of a block, not what goes in, and projects narrower token embeddings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import embedding, layer_norm

from exegpt_planner.model_spec import OptSpec
from exegpt_runner.layers.attention import Attention, Heads
from exegpt_runner.layers.batch import Batch
from exegpt_runner.layers.linear import Linear, packs, padded, padded_sizes
from exegpt_runner.models.model import COMPILED_ROWS, COMPILED_SAMPLED, LayerDone, skip
from exegpt_runner.weights import Checkpoint

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class LayerNorm:
    """(x - mean) / sd * weight + bias over the last dimension. weight, bias: (E,)."""

    weight: Tensor
    bias: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """x: (T, E)."""
        return layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptLayer:
    """One layer's weights."""

    attention_norm: LayerNorm
    qkv: Linear  # 3 * H * D, E
    output: Linear
    feed_norm: LayerNorm
    first: Linear
    second: Linear


@dataclass(frozen=True, slots=True, kw_only=True)
class OptModel:
    """Weights in memory and what they compute on packed rows."""

    spec: OptSpec
    dtype: torch.dtype
    tokens: Tensor  # (V, W), W the width of token embeddings
    positions: Tensor  # (context + offset, E)
    project_in: Linear | None  # W to E
    layers: tuple[OptLayer, ...]
    norm: LayerNorm | None
    project_out: Linear | None  # E to W
    head: Linear
    heads: Heads

    def warm_up(self) -> None:
        """Has the products compiled for the numbers of rows to come: else the first steps pay."""
        if not packs(self.dtype):
            return
        layer = self.layers[0]  # the others' products are of the same shapes
        for num_rows in padded_sizes(COMPILED_ROWS):
            x = torch.zeros(num_rows, self.spec.hidden, dtype=self.dtype)
            layer.output.add(layer.qkv(x)[:, : self.spec.hidden].contiguous(), x)
            self._feed_forward(layer, x)
            if num_rows <= COMPILED_SAMPLED:
                self.logits(x)

    def embed(self, batch: Batch) -> Tensor:
        """The rows that go into the layers, (T, E)."""
        x = embedding(batch.tokens, self.tokens)
        if self.project_in is not None:
            x = self.project_in(padded(x, self.dtype))[: len(x)]
        return x + embedding(batch.positions + self.spec.position_offset, self.positions)

    def run_layers(
        self, x: Tensor, batch: Batch, kv: Sequence[Tensor], has_kv: LayerDone = skip
    ) -> Tensor:
        """All layers on packed rows; writes their keys and values to `kv`, (2, H, C, D) a layer. x: (T, E).

        `has_kv(layer)` is called as soon as a layer's are written, before the rest of the layer runs.
        """
        attention = Attention(self.heads, batch, self.dtype)
        num_tokens, x = len(x), padded(x, self.dtype)
        for index, (layer, layer_kv) in enumerate(zip(self.layers, kv, strict=True)):
            x = self._attend(layer, x, attention, layer_kv)
            has_kv(index)
            x = self._feed_forward(layer, x)
        return x[:num_tokens]

    def logits(self, x: Tensor) -> Tensor:
        """x: (T, E) after the layers; returns (T, V)."""
        rows = padded(x, self.dtype)
        if self.norm is not None:
            rows = self.norm(rows)
        if self.project_out is not None:
            rows = self.project_out(rows)
        return self.head(rows)[: len(x)]

    def _attend(self, layer: OptLayer, x: Tensor, attention: Attention, kv: Tensor) -> Tensor:
        rows = layer.attention_norm(x) if self.spec.norm_first else x
        qkv = layer.qkv(rows).view(-1, 3 * self.spec.num_heads, self.spec.head_dim)
        x = layer.output.add(attention(qkv, kv), x)
        return x if self.spec.norm_first else layer.attention_norm(x)

    def _feed_forward(self, layer: OptLayer, x: Tensor) -> Tensor:
        rows = layer.feed_norm(x) if self.spec.norm_first else x
        x = layer.second.add(layer.first.activated(rows, self.spec.activation), x)
        return x if self.spec.norm_first else layer.feed_norm(x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What a family calls its tensors; `weight` and `bias` follow, layers are numbered."""

    prefix: str
    layers: str
    tokens: str
    positions: str
    norm: str
    qkv: tuple[str, ...]
    output: str
    attention_norm: str
    feed_norm: str
    first: str
    second: str
    is_transposed: bool  # matrices are (in, out)


OPT = Names(
    prefix="model.decoder.",
    layers="layers",
    tokens="embed_tokens",
    positions="embed_positions",
    norm="final_layer_norm",
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    output="self_attn.out_proj",
    attention_norm="self_attn_layer_norm",
    feed_norm="final_layer_norm",
    first="fc1",
    second="fc2",
    is_transposed=False,
)
GPT2 = Names(
    prefix="transformer.",
    layers="h",
    tokens="wte",
    positions="wpe",
    norm="ln_f",
    qkv=("attn.c_attn",),
    output="attn.c_proj",
    attention_norm="ln_1",
    feed_norm="ln_2",
    first="mlp.c_fc",
    second="mlp.c_proj",
    is_transposed=True,
)
_CAUSAL_MASKS = (".attn.bias", ".attn.masked_bias")  # that old GPT-2 checkpoints store


def load(folder: Path, spec: OptSpec, dtype: torch.dtype) -> OptModel:
    """The model in `folder`, in memory as `dtype`."""
    names = OPT if spec.architecture == "opt" else GPT2
    with Checkpoint(folder) as checkpoint:
        ignored = {name for name in checkpoint.names if name.endswith(_CAUSAL_MASKS)}
        ignored |= {"lm_head.weight"} if spec.tied_embeddings else set()
        # Checkpoints of the bare decoder, as GPT-2's first, leave the prefix out.
        prefix = names.prefix if f"{names.prefix}{names.tokens}.weight" in checkpoint.names else ""
        checkpoint.check(expected_shapes(spec, names, prefix), ignored=frozenset(ignored))
        return _Loader(checkpoint, spec, dtype, names, prefix).model()


def expected_shapes(spec: OptSpec, names: Names, prefix: str) -> Shapes:
    """Name and shape of every tensor of the checkpoint."""
    E, F, W = spec.hidden, spec.ffn, spec.embedding
    sizes = {name: (3 * E // len(names.qkv), E) for name in names.qkv}
    sizes |= {names.output: (E, E), names.first: (F, E), names.second: (E, F)}
    layer: Shapes = {}
    for name, (out, into) in sizes.items():
        layer[f"{name}.weight"] = (into, out) if names.is_transposed else (out, into)
        if spec.bias:
            layer[f"{name}.bias"] = (out,)
    for name in (names.attention_norm, names.feed_norm):
        layer |= {f"{name}.weight": (E,), f"{name}.bias": (E,)}
    shapes: Shapes = {
        f"{names.tokens}.weight": (spec.vocab, W),
        f"{names.positions}.weight": (spec.context + spec.position_offset, E),
    }
    if W != E:
        shapes |= {"project_in.weight": (E, W), "project_out.weight": (W, E)}
    if spec.final_norm:
        shapes |= {f"{names.norm}.weight": (E,), f"{names.norm}.bias": (E,)}
    for index in range(spec.num_layers):
        shapes |= {f"{names.layers}.{index}.{name}": shape for name, shape in layer.items()}
    whole = {prefix + name: shape for name, shape in shapes.items()}
    return whole if spec.tied_embeddings else whole | {"lm_head.weight": (spec.vocab, W)}


@dataclass(frozen=True, slots=True)
class _Loader:
    checkpoint: Checkpoint
    spec: OptSpec
    dtype: torch.dtype
    names: Names
    prefix: str

    def model(self) -> OptModel:
        spec, names = self.spec, self.names
        tokens = self._tensor(f"{names.tokens}.weight")
        head = (
            tokens if spec.tied_embeddings else self.checkpoint.load("lm_head.weight", self.dtype)
        )
        is_narrow = spec.embedding != spec.hidden
        never_turned = torch.zeros(spec.head_dim // 2)  # positions are in the rows already
        return OptModel(
            spec=spec,
            dtype=self.dtype,
            tokens=tokens,
            positions=self._tensor(f"{names.positions}.weight"),
            project_in=Linear(self._tensor("project_in.weight")) if is_narrow else None,
            layers=tuple(self._layer(f"{names.layers}.{i}.") for i in range(spec.num_layers)),
            norm=self._norm(names.norm) if spec.final_norm else None,
            project_out=Linear(self._tensor("project_out.weight")) if is_narrow else None,
            head=Linear(head),
            heads=Heads.of(
                spec.num_heads, spec.num_kv_heads, spec.head_dim, never_turned, self.dtype
            ),
        )

    def _layer(self, at: str) -> OptLayer:
        names = self.names
        return OptLayer(
            attention_norm=self._norm(at + names.attention_norm),
            qkv=self._linear(*(at + name for name in names.qkv)),
            output=self._linear(at + names.output),
            feed_norm=self._norm(at + names.feed_norm),
            first=self._linear(at + names.first),
            second=self._linear(at + names.second),
        )

    def _tensor(self, name: str) -> Tensor:
        return self.checkpoint.load(self.prefix + name, self.dtype)

    def _norm(self, name: str) -> LayerNorm:
        return LayerNorm(
            self._tensor(f"{name}.weight"), self._tensor(f"{name}.bias"), self.spec.norm_eps
        )

    def _linear(self, *names: str) -> Linear:
        weights = [self._tensor(f"{name}.weight") for name in names]
        if self.names.is_transposed:
            weights = [weight.T.contiguous() for weight in weights]
        biases = [self._tensor(f"{name}.bias") for name in names] if self.spec.bias else None
        return Linear(torch.cat(weights), torch.cat(biases) if biases else None)
