"""The shape of a model, read from a Hugging Face folder, and the bytes that follow from it.

Only what the engine computes exactly is accepted: decoders of the Llama family (Llama, Mistral, Qwen2 and 2.5, Qwen3)
and of the OPT family (OPT, GPT-2) with full attention. Everything else that
a config.json may ask for (experts, latent attention, short windows, quantised weights, other rotary scalings) is
refused by name, never mis-sized: `num_parameters` equals the count of the real model.
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
    """A decoder's shape, whatever its family (docs/formats.md)."""

    version: Literal["exegpt.model/v1"] = "exegpt.model/v1"
    num_layers: Count
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
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        raise NotImplementedError

    @property
    def outside_parameters(self) -> int:
        """Parameters outside the layers; tied embeddings count once."""
        raise NotImplementedError

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        return self.num_layers * self.layer_parameters + self.outside_parameters

    @property
    def fingerprint(self) -> str:
        """Equal for models that take equal time a step: the shape, not weights or special tokens."""
        shape = self.model_dump_json(exclude={"bos_token", "end_tokens"})
        return hashlib.sha256(shape.encode()).hexdigest()[:16]

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of all weights."""
        return self.num_parameters * _number_bytes(dtype)

    def layer_weight_bytes(self, dtype: str) -> int:
        """Bytes of one layer's weights."""
        return self.layer_parameters * _number_bytes(dtype)

    def kv_bytes_per_token(self, dtype: str) -> int:
        """Bytes of keys and values of one token, all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * _number_bytes(dtype)


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

    @property
    def outside_parameters(self) -> int:
        """Embedding, head and the last norm."""
        return self.vocab * self.hidden * (1 if self.tied_embeddings else 2) + self.hidden


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
    def outside_parameters(self) -> int:
        """Embeddings, head, projections and the last norm."""
        tables = self.vocab * self.embedding * (1 if self.tied_embeddings else 2)
        positions = (self.context + self.position_offset) * self.hidden
        projections = 2 * self.hidden * self.embedding if self.embedding != self.hidden else 0
        return tables + positions + projections + 2 * self.hidden * self.final_norm


def parse_model_spec(text: str, *, source: str) -> LlamaSpec | OptSpec:
    """The spec that a JSON text from `source` holds, as it is kept beside a profile."""
    data = json_object(text, source)
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
