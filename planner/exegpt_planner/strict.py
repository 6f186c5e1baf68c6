"""Strict, frozen models for everything that comes from outside, and one way to read them.

An unknown field is an error that names it and the nearest right one; all problems of one input are
reported together as `InvalidSpec`, each with its path.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from exegpt_planner.errors import InvalidSpec, Unavailable

M = TypeVar("M", bound="StrictModel")


class StrictModel(BaseModel):
    """A frozen model that refuses unknown fields and non-finite numbers."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="strings"
    )


def parse(model: type[M], data: Mapping[str, Any], *, source: str) -> M:
    """`data` as a `model`; raises `InvalidSpec` naming `source` and every problem with its path."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InvalidSpec(
            source, [_explain(model, problem) for problem in error.errors()]
        ) from None


def read_json(model: type[M], path: Path) -> M:
    """The `model` stored as JSON in `path`."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}. Check the path.") from None
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidSpec(str(path), [f"not JSON: {error}"]) from None
    if not isinstance(data, dict):
        raise InvalidSpec(str(path), ["expected a JSON object at the top"])
    return parse(model, data, source=str(path))


def _explain(model: type[BaseModel], problem: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"]) or "(top)"
    if problem["type"] == "extra_forbidden":
        known = _field_names(model, problem["loc"][:-1])
        near = difflib.get_close_matches(str(problem["loc"][-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known fields: {', '.join(known)}"
        return f"{path}: unknown field; {hint}"
    given = "" if problem["type"] == "missing" else f" (given: {_short(problem['input'])})"
    return f"{path}: {problem['msg'].removeprefix('Value error, ')}{given}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _field_names(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """The field names, as written by users, of the model found at `loc` below `model`."""
    candidates: list[type[BaseModel]] = [model]
    for part in loc:
        step = [
            found
            for each in candidates
            for name, field in each.model_fields.items()
            if part in (name, field.alias)
            for found in _models_in(field.annotation)
        ]
        candidates = step or candidates  # an index or a union tag does not go down a level
    return sorted(
        {field.alias or name for each in candidates for name, field in each.model_fields.items()}
    )


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for each in get_args(annotation) for found in _models_in(each)]
