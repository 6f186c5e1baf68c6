"""Whatever a client sends, it gets an answer in OpenAI's form and never an internal error."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exegpt_gateway import chat, completions
from exegpt_gateway.errors_http import error_body, refuse
from exegpt_gateway.openai_schema import ChatRequest, CompletionRequest, read_chat, read_completion
from exegpt_gateway.served import ServedModel
from exegpt_planner.errors import InvalidSpec

NAMES = [*ChatRequest.model_fields, *CompletionRequest.model_fields, "tools", "n", "echo"]
TEXT = st.text(st.characters(), max_size=4)  # lone surrogates included: JSON can carry them
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXT
KEYS = st.sampled_from(["role", "content", "type", "text", "include_usage"]) | TEXT
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.sampled_from(NAMES) | TEXT, VALUES, max_size=4)
RIGHT = {"model": "tiny", "prompt": "Hi", "messages": [{"role": "user", "content": "Hi"}]}


def ask_completion(body: bytes, served: ServedModel) -> None:
    completions.read_ask(read_completion(body), served)


def ask_chat(body: bytes, served: ServedModel) -> None:
    chat.read_ask(read_chat(body), served)


def check(body: bytes, served: ServedModel) -> None:
    for ask in (ask_completion, ask_chat):
        try:
            ask(body, served)
        except InvalidSpec as error:
            refused = refuse(error)
            assert refused.status == 400
            answer = error_body(400, str(refused), param=refused.param)
            json.dumps(answer, ensure_ascii=False).encode()


@settings(max_examples=60)
@given(fields=FIELDS, left_out=st.sampled_from(["prompt", "messages"]))
def test_any_fields(served: ServedModel, fields: dict[str, Any], left_out: str) -> None:
    right = {name: value for name, value in RIGHT.items() if name != left_out}
    check(json.dumps({**right, **fields}).encode(), served)


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"\xff\xfe",
        b"",
        b'{"model": "tiny", "prompt": "\\ud800"}',
        b'{"model": "tiny", "prompt": "a", "stop": "\\ud800"}',
        b'{"model": "tiny", "prompt": "a", "\\ud800": 1}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"model": "tiny", "prompt": "a", "temperature": NaN}',
        b'{"model": "tiny", "prompt": "a", "seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_known_traps(served: ServedModel, body: bytes) -> None:
    check(body, served)
