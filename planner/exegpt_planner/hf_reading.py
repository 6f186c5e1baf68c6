"""Values of a Hugging Face config.json, with everything that is wrong with them collected on the way."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from exegpt_planner.strict import read_json_object


class Reading:
    """One config.json being read; collects what is `unsupported` and what is `wrong` on the way."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.unsupported: list[str] = []
        self.wrong: list[str] = []

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number of at least 1; 1 where there is none, which is then listed as wrong."""
        value = self.config.get(name)
        if value is None:
            value = default
        if value is None:
            self.wrong.append(f"{name}: missing")
        elif isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.wrong.append(f"{name}: expected a whole number of at least 1 (given: {value!r})")
        else:
            return value
        return 1

    def number(self, name: str, default: float) -> float:
        """A positive number."""
        value = self.config.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            self.wrong.append(f"{name}: expected a positive number (given: {value!r})")
            return default
        return float(value)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false, `default` where absent."""
        value = self.config.get(name)
        if value not in (None, False, True):
            self.wrong.append(f"{name}: expected true or false (given: {value!r})")
        return default if value is None else bool(value)

    def tokens(self, name: str) -> tuple[int, ...] | None:
        """A token id or a list of them; None where absent."""
        value = self.config.get(name)
        if value is None:
            return None
        tokens = value if isinstance(value, list) else [value]
        if not all(isinstance(token, int) and not isinstance(token, bool) for token in tokens):
            self.wrong.append(f"{name}: expected a token id or a list of them (given: {value!r})")
            return None
        return tuple(dict.fromkeys(tokens))

    def token(self, name: str) -> int | None:
        """The first of `tokens`."""
        tokens = self.tokens(name)
        return tokens[0] if tokens else None

    def refuse_quantised(self) -> None:
        """Lists quantised weights."""
        if self.config.get("quantization_config"):
            self.unsupported.append(
                "quantised weights (quantization_config); use the unquantised model"
            )


def head_problems(num_heads: int, num_kv_heads: int, head_dim: int) -> list[str]:
    """Why attention with rotary embedding cannot have these heads."""
    problems = []
    if num_heads % num_kv_heads:
        problems.append(f"{num_heads} heads are no multiple of {num_kv_heads} KV heads")
    if head_dim % 2:
        problems.append(f"head_dim {head_dim} is odd; rotary embedding turns pairs")
    return problems


def read_end_tokens(folder: Path, reading: Reading) -> tuple[int, ...]:
    """The end tokens: those of generation_config.json where it names any, else those of config.json."""
    path = folder / "generation_config.json"
    if path.is_file():
        generation = Reading(read_json_object(path))
        tokens = generation.tokens("eos_token_id")
        reading.wrong += [f"generation_config.json: {problem}" for problem in generation.wrong]
        if tokens is not None:
            return tokens
    return reading.tokens("eos_token_id") or ()
