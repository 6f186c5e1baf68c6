"""The shape of a model, read from a Hugging Face folder, and the bytes that follow from it.

From a folder only what the engine computes exactly is accepted: decoders of the Llama family (Llama, Mistral, Qwen2
and 2.5, Qwen3) and of the OPT family (OPT, GPT-2) with full attention. Everything else that
a config.json may ask for (experts, latent attention, short windows, quantised weights, other rotary scalings) is
refused by name, never mis-sized: `num_parameters` equals the count of the real model. T5 is a shape to plan with.

A pipeline cuts the layers; its first stage has the embeddings too, its last the head:

    weight_bytes = num_layers * layer + num_encoder_layers * encoder_layer + embedding + head - (tied: one table)
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import Field, model_validator

from exegpt_planner.errors import InvalidSpec, Unavailable, UnsupportedModel
from exegpt_planner.hf_config import read_fields
from exegpt_planner.hf_reading import head_problems, read_end_tokens
from exegpt_planner.strict import StrictModel, json_object, parse, read_json_object

BYTES_PER_NUMBER = {"bfloat16": 2, "float16": 2, "float32": 4, "float64": 8}
Count = Annotated[int, Field(ge=1)]


class LinearRopeScaling(StrictModel):
    """Positions divided by `factor`."""

    type: Literal["linear"] = "linear"
    factor: float = Field(ge=1)


class Llama3RopeScaling(StrictModel):
    """Llama 3's: slow rotations slowed by `factor`, fast ones kept, those between blended."""

    type: Literal["llama3"] = "llama3"
    factor: float = Field(ge=1)
    low_freq_factor: float = Field(gt=0)
    high_freq_factor: float = Field(gt=0)
    original_context: Count  # tokens

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError("low_freq_factor must be below high_freq_factor")
        return self


RopeScaling = Annotated[LinearRopeScaling | Llama3RopeScaling, Field(discriminator="type")]


class ModelSpec(StrictModel):
    """A model's shape, whatever its family (docs/formats.md)."""

    version: Literal["exegpt.model/v1"] = "exegpt.model/v1"
    num_layers: Count  # of the decoder
    num_encoder_layers: int = Field(default=0, ge=0, exclude_if=lambda value: value == 0)
    hidden: Count
    ffn: Count
    num_heads: Count
    num_kv_heads: Count
    head_dim: Count
    vocab: Count
    context: Count  # tokens of input and output together
    norm_eps: float = Field(gt=0)
    tied_embeddings: bool
    bos_token: int | None = None
    end_tokens: tuple[int, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems = head_problems(self.num_heads, self.num_kv_heads, self.head_dim)
        specials = (*self.end_tokens, *(() if self.bos_token is None else (self.bos_token,)))
        if outside := [token for token in specials if not 0 <= token < self.vocab]:
            problems.append(f"special tokens {outside} lie outside the vocabulary of {self.vocab}")
        if self.num_encoder_layers and not self.encoder_layer_parameters:
            problems.append(
                f"num_encoder_layers = {self.num_encoder_layers} in a decoder-only model"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def encode_samples(self) -> bool:
        """Whether the encode samples the first token; else (encoder-decoder) the first decode iteration does."""
        return self.num_encoder_layers == 0

    @property
    def layer_parameters(self) -> int:
        """Parameters of one decoder layer."""
        raise NotImplementedError

    @property
    def encoder_layer_parameters(self) -> int:
        """Parameters of one encoder layer; 0 in a decoder-only model."""
        return 0

    @property
    def cross_kv_parameters(self) -> int:
        """Of a decoder layer, those that make cross-attention's KV of the encoder's output; 0 if decoder-only."""
        return 0

    @property
    def table_parameters(self) -> int:
        """Parameters of one table of token vectors, which tied embeddings use at both ends."""
        return self.vocab * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Parameters before the first layer: token and position tables."""
        return self.table_parameters

    @property
    def head_parameters(self) -> int:
        """Parameters behind the last layer: the last norm and the head, counted whether tied or not."""
        return self.table_parameters + self.hidden

    @property
    def outside_parameters(self) -> int:
        """Parameters outside the layers; tied embeddings count once."""
        ends = self.embedding_parameters + self.head_parameters
        return ends - self.table_parameters * self.tied_embeddings

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        return (
            self.num_layers * self.layer_parameters
            + self.num_encoder_layers * self.encoder_layer_parameters
            + self.outside_parameters
        )

    @property
    def fingerprint(self) -> str:
        """Equal for models that take equal time a step: the shape, not weights or special tokens."""
        shape = self.model_dump_json(exclude={"bos_token", "end_tokens"})
        return hashlib.sha256(shape.encode()).hexdigest()[:16]

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of all weights."""
        return self.num_parameters * _number_bytes(dtype)

    def layer_weight_bytes(self, dtype: str) -> int:
        """Bytes of one decoder layer's weights."""
        return self.layer_parameters * _number_bytes(dtype)

    def encoder_layer_weight_bytes(self, dtype: str) -> int:
        """Bytes of one encoder layer's weights; 0 in a decoder-only model."""
        return self.encoder_layer_parameters * _number_bytes(dtype)

    def cross_kv_weight_bytes(self, dtype: str) -> int:
        """Bytes of what makes one decoder layer's cross-attention KV, a part of that layer."""
        return self.cross_kv_parameters * _number_bytes(dtype)

    def embedding_weight_bytes(self, dtype: str) -> int:
        """Bytes of what a first stage has beside its layers."""
        return self.embedding_parameters * _number_bytes(dtype)

    def head_weight_bytes(self, dtype: str) -> int:
        """Bytes of what the last stage has beside its layers, as if untied.

        Where the embeddings are tied and first and last stage are two, the last needs a copy of its own: this size.
        Where they are one, both ends together take `outside_weight_bytes`.
        """
        return self.head_parameters * _number_bytes(dtype)

    def outside_weight_bytes(self, dtype: str) -> int:
        """Bytes of both ends on one stage; tied embeddings count once."""
        return self.outside_parameters * _number_bytes(dtype)

    def kv_bytes_per_token_layer(self, dtype: str) -> int:
        """Bytes of keys and values of one token in one decoder layer."""
        return 2 * self.num_kv_heads * self.head_dim * _number_bytes(dtype)

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of keys and values of one token, all decoder layers."""
        return self.num_layers * self.kv_bytes_per_token_layer(dtype)


class LlamaSpec(ModelSpec):
    """Llama, Mistral, Qwen2 and 2.5, Qwen3: rotary positions, RMS norms, a gated feed-forward."""

    architecture: Literal["llama", "mistral", "qwen2", "qwen3"]
    rope_theta: float = Field(gt=0)
    rope_scaling: RopeScaling | None = None
    qkv_bias: bool = False
    output_bias: bool = False  # of attention's output projection
    mlp_bias: bool = False
    qk_norm: bool = False  # each head's query and key is normalised, before the rotary embedding

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        heads, kv_heads = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        matrices = 2 * self.hidden * (heads + kv_heads) + 3 * self.hidden * self.ffn
        biases = (
            self.qkv_bias * (heads + 2 * kv_heads)
            + self.output_bias * self.hidden
            + self.mlp_bias * (2 * self.ffn + self.hidden)
        )
        norms = 2 * self.hidden + 2 * self.qk_norm * self.head_dim
        return matrices + biases + norms


class OptSpec(ModelSpec):
    """OPT and GPT-2 (GPT-3's shape): learned positions, layer norms, a plain feed-forward."""

    architecture: Literal["opt", "gpt2"]
    activation: Literal["relu", "gelu_tanh"]
    embedding: Count  # width of token embeddings; projected where it is not the hidden one
    position_offset: int = Field(ge=0)  # rows of the position table before position 0
    bias: bool
    norm_first: bool  # normalise what goes into a block, else what comes out
    final_norm: bool

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        matrices = 4 * self.hidden**2 + 2 * self.hidden * self.ffn
        biases = self.bias * (5 * self.hidden + self.ffn)
        return matrices + biases + 4 * self.hidden

    @property
    def table_parameters(self) -> int:
        """Parameters of one table of token vectors."""
        return self.vocab * self.embedding

    @property
    def embedding_parameters(self) -> int:
        """Token and position tables, and the projection to the hidden width where there is one."""
        positions = (self.context + self.position_offset) * self.hidden
        return self.table_parameters + positions + self._projection

    @property
    def head_parameters(self) -> int:
        """The last norm, the projection from the hidden width and the head."""
        return 2 * self.hidden * self.final_norm + self._projection + self.table_parameters

    @property
    def _projection(self) -> int:
        return self.hidden * self.embedding if self.embedding != self.hidden else 0


class T5Spec(ModelSpec):
    """T5 and T5 1.1: encoder and decoder, relative positions, RMS norms without bias.

    `num_layers` counts decoder layers. Each holds the KV of generated tokens for self-attention and of the prompt's
    for cross-attention, equal bytes a token, so a query's KV tokens are the same sum as in a decoder-only model.
    Both passes start with the embedding: the first stage of either needs it.
    """

    architecture: Literal["t5"]
    num_encoder_layers: Count
    gated: bool  # the feed-forward of T5 1.1 has two matrices in, T5's one
    activation: Literal["relu", "gelu_tanh"]
    relative_buckets: Count  # of distances, each with a bias a head in encoder and decoder
    relative_distance: Count  # tokens, from which on the last bucket holds

    @model_validator(mode="after")
    def _a_kv_head_each(self) -> Self:
        if self.num_kv_heads != self.num_heads:
            raise ValueError(
                f"{self.num_kv_heads} KV heads for {self.num_heads} heads; T5's are equal in number"
            )
        return self

    @property
    def _attention(self) -> int:
        return 4 * self.hidden * self.num_heads * self.head_dim

    @property
    def _ffn(self) -> int:
        return (2 + self.gated) * self.hidden * self.ffn

    @property
    def layer_parameters(self) -> int:
        """A decoder layer: self-attention, cross-attention, feed-forward."""
        return 2 * self._attention + self._ffn + 3 * self.hidden

    @property
    def encoder_layer_parameters(self) -> int:
        """An encoder layer: self-attention, feed-forward."""
        return self._attention + self._ffn + 2 * self.hidden

    @property
    def cross_kv_parameters(self) -> int:
        """Those of a decoder layer that make cross-attention's KV of the encoder's output, a part of the encode."""
        return 2 * self.hidden * self.num_kv_heads * self.head_dim

    @property
    def embedding_parameters(self) -> int:
        """The token table, and the biases of relative positions in encoder and decoder."""
        return self.table_parameters + 2 * self.relative_buckets * self.num_heads

    @property
    def head_parameters(self) -> int:
        """The last norms of encoder and decoder, and the head."""
        return self.table_parameters + 2 * self.hidden


def parse_model_spec(text: str, *, source: str) -> LlamaSpec | OptSpec | T5Spec:
    """The spec that a JSON text from `source` holds, as it is kept beside a profile."""
    data = json_object(text, source)
    if data.get("architecture") == "t5":
        return parse(T5Spec, data, source=source)
    if data.get("architecture") in get_args(OptSpec.model_fields["architecture"].annotation):
        return parse(OptSpec, data, source=source)
    return parse(LlamaSpec, data, source=source)


def read_model_spec(folder: Path) -> LlamaSpec | OptSpec:
    """The shape of the model in a Hugging Face folder: config.json, and end tokens from generation_config.json."""
    path = folder / "config.json"
    if not folder.is_dir():
        raise Unavailable(f"no model folder at {folder}. Check the path.")
    if not path.is_file():
        raise Unavailable(f"{folder} has no config.json. Is it a Hugging Face model folder?")
    reading, fields = read_fields(read_json_object(path))
    fields["end_tokens"] = read_end_tokens(folder, reading)
    if reading.unsupported:
        raise UnsupportedModel(str(path), reading.unsupported + reading.wrong)
    if reading.wrong:
        raise InvalidSpec(str(path), reading.wrong)
    if "rope_theta" in fields:
        return parse(LlamaSpec, fields, source=str(path))
    return parse(OptSpec, fields, source=str(path))


def _number_bytes(dtype: str) -> int:
    if dtype not in BYTES_PER_NUMBER:
        known = ", ".join(BYTES_PER_NUMBER)
        raise InvalidSpec("dtype", [f"{dtype!r} is not known; use one of {known}"])
    return BYTES_PER_NUMBER[dtype]
