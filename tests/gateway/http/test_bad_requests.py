from __future__ import annotations

from typing import Any

import openai
import pytest

from exegpt_gateway.app import BODY_LIMIT_BYTES
from exegpt_gateway.query import Draining, PromptTooLong, QueueFull
from gateway.http.front_door import Door

pytestmark = pytest.mark.asyncio(loop_scope="session")

HI = [{"role": "user", "content": "Hi"}]


async def refusal(
    door: Door, route: str, fields: dict[str, Any], status: int = 400
) -> dict[str, Any]:
    """The error body for a request that is right but for `fields`."""
    right = {"prompt": "Hi"} if route == "completions" else {"messages": HI}
    answer = await door.http.post(
        "/v1/" + route.replace("chat", "chat/completions"),
        json={"model": "tiny", **right, **fields},
    )
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    error: dict[str, Any] = answer.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert not door.conductor.submitted
    return error


@pytest.mark.parametrize(
    ("route", "name", "value"),
    [
        ("chat", "tools", [{"type": "function", "function": {"name": "f"}}]),
        ("chat", "tool_choice", "auto"),
        ("chat", "functions", [{"name": "f"}]),
        ("chat", "logprobs", True),
        ("chat", "top_logprobs", 3),
        ("chat", "response_format", {"type": "json_object"}),
        ("chat", "n", 2),
        ("chat", "presence_penalty", 0.5),
        ("chat", "frequency_penalty", -1),
        ("chat", "logit_bias", {"5": 1}),
        ("completions", "best_of", 3),
        ("completions", "n", 2),
        ("completions", "suffix", "end"),
        ("completions", "echo", True),
        ("completions", "logprobs", 0),
    ],
)
async def test_what_is_not_supported_is_refused_by_name(
    door: Door, route: str, name: str, value: Any
) -> None:
    error = await refusal(door, route, {name: value})
    assert error["message"].startswith(f"{name}: not supported")
    assert error["type"] == "invalid_request_error"
    assert error["param"] == name


async def test_asking_for_nothing_of_it_is_fine(door: Door) -> None:
    door.script("a")
    await door.openai.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Hi"}],
        n=1,
        tools=[],
        tool_choice="none",
        response_format={"type": "text"},
        presence_penalty=0,
        frequency_penalty=0.0,
        logit_bias={},
        logprobs=False,
        user="someone",
        metadata={"a": "b"},
        temperature=None,
        stop=None,
    )
    assert len(door.conductor.submitted) == 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_token": 5}, "max_token: unknown field; did you mean 'max_tokens'?"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1 (given: 0)"),
        ({"max_tokens": "5"}, "max_tokens: Input should be a valid integer (given: '5')"),
        ({"temperature": 2.5}, "temperature: Input should be less than or equal to 2 (given: 2.5)"),
        ({"top_p": 0}, "top_p: Input should be greater than 0 (given: 0)"),
        ({"stop": ["a"] * 5}, "stop: at most 4 stop strings, given 5"),
        ({"stop": [""]}, "stop: expected a non-empty string or a list of them"),
        ({"prompt": 5}, "prompt: expected a string or a list of token ids (given: 5)"),
        ({"prompt": ["a", "b"]}, "prompt: one prompt a request is supported"),
        ({"prompt": []}, "prompt: expected a string or a list of token ids"),
        ({"prompt": [3, 400]}, "prompt: token 400 is outside the vocabulary of 400 tokens"),
        ({"prompt": [3, -1]}, "prompt: expected a string or a list of token ids"),
        ({"stop_token_ids": [-5]}, "stop_token_ids: token -5 is outside the vocabulary"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens: 9 exceeds the limit of 8"),
        ({"stream_options": {"include_usage": True}}, "stream_options: only with stream: true"),
        (
            {"stream": True, "stream_options": {"include_use": True}},
            "stream_options.include_use: unknown field; did you mean 'include_usage'?",
        ),
        (
            {"prompt": [5] * 300},
            "prompt: 300 tokens leave no room in the context of 256; shorten it",
        ),
        (
            {"prompt": [5] * 200, "max_tokens": 57},
            "max_tokens: prompt (200 tokens) and max_tokens (57) exceed the context of 256; "
            "ask for at most 56",
        ),
    ],
)
async def test_a_wrong_value_is_named_with_its_remedy(
    door: Door, fields: dict[str, Any], message: str
) -> None:
    error = await refusal(door, "completions", fields)
    assert error["message"].startswith(message)
    assert error["param"] == message.partition(":")[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role: Input should be"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content: content parts of type image_url are not supported, only text",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "txt": "a"}]}]},
            "messages.0.content: a text part has `type` and `text`, a string, and nothing else",
        ),
        (
            {"messages": [{"role": "assistant", "content": "a", "tool_calls": [{"id": "1"}]}]},
            "messages.0.tool_calls: not supported; leave it out",
        ),
        (
            {"max_completion_tokens": 300},
            "max_completion_tokens: prompt (19 tokens) and max_completion_tokens (300) exceed the "
            "context of 256; ask for at most 237",
        ),
        (
            {"messages": [{"role": "user", "content": "x" * 300}]},
            "messages: 317 tokens leave no room in the context of 256; shorten it",
        ),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens: 3 differs from max_comple"),
    ],
)
async def test_wrong_messages_are_named(door: Door, fields: dict[str, Any], message: str) -> None:
    error = await refusal(door, "chat", fields)
    assert error["message"].startswith(message)


async def test_all_problems_come_at_once(door: Door) -> None:
    error = await refusal(
        door, "chat", {"tools": [{}], "n": 3, "temperature": -1, "seeed": 1, "top_k": 1.5}
    )
    for name in ("tools", "n", "temperature", "seeed", "top_k"):
        assert f"{name}: " in error["message"]


async def test_a_body_that_is_no_json_object(door: Door) -> None:
    for content, message in ((b"{", "body: not JSON"), (b"[]", "body: expected a JSON object")):
        answer = await door.http.post("/v1/completions", content=content)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(message)


async def test_another_model_is_not_found_and_the_served_one_is_named(door: Door) -> None:
    error = await refusal(door, "completions", {"model": "gpt-4"}, status=404)
    assert error["code"] == "model_not_found"
    assert "'tiny'" in error["message"]
    with pytest.raises(openai.NotFoundError, match="'tiny'"):
        await door.openai.models.retrieve("other/model")


async def test_routes_and_methods_that_are_not_there(door: Door) -> None:
    answer = await door.http.get("/v1/embeddings")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith("GET /v1/embeddings: no such route")
    answer = await door.http.get("/v1/completions")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "POST"
    assert answer.json()["error"]["message"].endswith("use POST")


async def test_a_body_beyond_the_limit_is_refused(door: Door) -> None:
    answer = await door.http.post("/v1/completions", content=b" " * (BODY_LIMIT_BYTES + 1))
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


async def test_a_full_queue_says_when_to_come_back(door: Door) -> None:
    door.conductor.refusal = QueueFull(num_waiting=64, retry_after_s=2.3)
    with pytest.raises(openai.InternalServerError) as caught:
        await door.openai.completions.create(model="tiny", prompt="Hi", stream=True)
    assert caught.value.status_code == 503
    assert caught.value.code == "queue_full"
    assert caught.value.response.headers["retry-after"] == "3"


async def test_a_draining_server_sends_queries_elsewhere(door: Door) -> None:
    door.conductor.refusal = Draining()
    error = await refusal(door, "completions", {}, status=503)
    assert error["code"] == "draining"
    assert error["type"] == "server_error"


async def test_a_bug_of_ours_shows_no_internals(door: Door) -> None:
    door.conductor.refusal = KeyError("secret")
    error = await refusal(door, "completions", {}, status=500)
    assert error["message"] == "internal error; the server's log has the details"


async def test_what_never_fits_the_kv_is_a_bad_request(door: Door) -> None:
    door.conductor.refusal = PromptTooLong("its 90 tokens exceed the KV arena of 64")
    error = await refusal(door, "completions", {})
    assert error["message"] == "its 90 tokens exceed the KV arena of 64"
