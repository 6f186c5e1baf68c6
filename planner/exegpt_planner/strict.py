"""Strict, frozen models for everything that comes from outside, and one way to read and write them.

An unknown field is an error that names it and the nearest right one; all problems of one input are reported together as
`InvalidSpec`, each with its path. Files are replaced whole: a reader never sees half of one.
"""

from __future__ import annotations

import difflib
import json
import os
import tempfile
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from exegpt_planner.errors import InvalidSpec, Unavailable

M = TypeVar("M", bound="StrictModel")
Text = Annotated[str, Field(min_length=1, max_length=253)]  # as long as Kubernetes names get


class StrictModel(BaseModel):
    """A frozen model that refuses unknown fields and non-finite numbers."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, ser_json_inf_nan="strings"
    )


class CamelModel(StrictModel):
    """A strict model whose fields are camelCase in files and snake_case in code."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


def parse(model: type[M], data: Mapping[str, Any], *, source: str) -> M:
    """`data` as a `model`; raises `InvalidSpec` naming `source` and every problem with its path."""
    try:
        return model.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = [each for each in error.errors() if not _follows(each, error.errors())]
        raise InvalidSpec(source, [_explain(model, each) for each in problems]) from None


def read_json(model: type[M], path: Path) -> M:
    """The `model` stored as JSON in `path`."""
    return parse(model, read_json_object(path), source=str(path))


def parse_json(model: type[M], text: str, *, source: str) -> M:
    """The `model` that a JSON text from `source` holds."""
    return parse(model, json_object(text, source), source=source)


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in `path`, not checked further."""
    return json_object(_read_text(path), str(path))


def json_object(text: str, source: str) -> dict[str, Any]:
    """The JSON object that a text from `source` holds, not checked further."""
    try:
        data = json.loads(text, object_pairs_hook=_unique_keys)
    except (json.JSONDecodeError, _DuplicateKey) as error:
        raise InvalidSpec(source, [f"not JSON: {error}"]) from None
    if not isinstance(data, dict):
        raise InvalidSpec(source, ["expected a JSON object at the top"])
    return data


def read_yaml(path: Path) -> dict[str, Any]:
    """The one mapping in a YAML file, not checked further; JSON is YAML too."""
    try:
        documents = list(yaml.load_all(_read_text(path), _UniqueKeyLoader))
    except yaml.YAMLError as error:
        raise InvalidSpec(str(path), [f"not YAML: {' '.join(str(error).split())}"]) from None
    if len(documents) > 1:
        raise InvalidSpec(
            str(path), [f"holds {len(documents)} YAML documents; give each a file of its own"]
        )
    if not documents or not isinstance(documents[0], dict):
        raise InvalidSpec(str(path), ["expected a mapping at the top, like `kind: ...`"])
    return documents[0]


def write_json(path: Path, model: BaseModel) -> None:
    """Writes `model` as JSON to `path`, whole or not at all."""
    write_text(path, model.model_dump_json(by_alias=True, indent=2) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes `text` to `path`, whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        partial = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(
            f"cannot write {path}: {error.strerror}. Free space or choose another folder."
        ) from None


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}. Check the path.") from None
    except UnicodeDecodeError as error:
        raise InvalidSpec(str(path), [f"not UTF-8 text: {error.reason}"]) from None


class _DuplicateKey(ValueError):
    pass


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(key for key, _ in pairs)
    if twice := [key for key, count in counts.items() if count > 1]:
        raise _DuplicateKey(f"key {twice[0]!r} is given twice")
    return dict(pairs)


class _UniqueKeyLoader(yaml.SafeLoader):
    """Refuses a key given twice, of which YAML readers silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[tuple[str, str]] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                continue  # no field has such a name; the model will say so
            key = (key_node.tag, key_node.value)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key_node.value!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def _follows(problem: ErrorDetails, problems: Sequence[ErrorDetails]) -> bool:
    """Whether a problem only follows from another one that is listed too."""
    match problem["type"]:
        case "default_factory_not_called":
            return True
        case "too_short":  # pydantic counts the items that are right
            depth = len(problem["loc"])
            return any(each["loc"][:depth] == problem["loc"] != each["loc"] for each in problems)
        case _:
            return False


def _explain(model: type[BaseModel], problem: ErrorDetails) -> str:
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
