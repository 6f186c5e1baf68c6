"""Chat messages to one prompt text, by the model's own template, in a sandbox.

Follows Hugging Face's conventions (whitespace, helpers, loop controls), so templates render as their
authors saw them. A template comes with a model from anywhere: it runs in jinja2's immutable sandbox,
reaches no Python internals, and whatever it raises is reported as an invalid request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from exegpt_gateway.tokenizer import read_tokenizer_config
from exegpt_planner.errors import InvalidSpec, Unavailable

# What template code can raise: jinja2's own, and Python's for operations on values of the wrong kind.
RENDER_ERRORS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A compiled template and the special tokens it may name."""

    def __init__(self, source: str, *, special_texts: Mapping[str, str]) -> None:
        self._special_texts = dict(special_texts)
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InvalidSpec(
                "chat template", [f"line {error.lineno}: {error.message}; correct the template"]
            ) from None

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The prompt's text, ready for the assistant's answer."""
        try:
            return self._template.render(
                messages=list(messages),
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_texts,
            )
        except RENDER_ERRORS as error:
            raise InvalidSpec(
                "request", [f"messages: the model's chat template refuses them: {error}"]
            ) from None


def load_chat_template(folder: Path, *, special_texts: Mapping[str, str]) -> ChatTemplate | None:
    """The folder's template: `chat_template.jinja`, else `tokenizer_config.json`'s; None without."""
    path = folder / "chat_template.jinja"
    try:
        source = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        listed = _listed(read_tokenizer_config(folder).get("chat_template"))
        return None if listed is None else ChatTemplate(listed, special_texts=special_texts)
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"cannot read {path}: {error}. Check the file.") from None
    return ChatTemplate(source, special_texts=special_texts)


def _listed(value: Any) -> str | None:
    """The template in `tokenizer_config.json`: a string, or the one named "default" in a list."""
    match value:
        case None:
            return None
        case str(source):
            return source
        case [*entries] if all(_is_named(entry) for entry in entries):
            return next((e["template"] for e in entries if e["name"] == "default"), None)
        case _:
            raise InvalidSpec(
                "tokenizer_config.json",
                ["chat_template: expected a string or a list of {name, template}"],
            )


def _is_named(entry: Any) -> bool:
    match entry:
        case {"name": str(), "template": str()}:
            return True
    return False


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain set

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: jinja2's own filter escapes for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)
