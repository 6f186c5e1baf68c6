from __future__ import annotations

import asyncio
import json

import openai
import pytest

from exegpt_gateway.app import IN_LOOP_BYTES
from exegpt_gateway.query import SamplingParams, TokenEvent
from exegpt_planner.errors import Unavailable
from gateway.http.front_door import COMPLETION_S, QUEUED_S, Door

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "The capital of France is Paris. 你好 😀🎉!"


async def test_a_stream_adds_up_to_the_text_and_ends_with_its_reason(door: Door) -> None:
    tokens = door.script(TEXT)
    stream = await door.openai.completions.create(
        model="tiny",
        prompt="The capital",
        max_tokens=len(tokens),
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    choices = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.text for choice in choices) == TEXT
    assert [choice.finish_reason for choice in choices] == [None] * (len(choices) - 1) + ["length"]
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.prompt_tokens == len(door.conductor.submitted[0][0])
    assert usage.completion_tokens == len(tokens)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.model_extra is not None
    assert usage.model_extra["exegpt"] == {
        "queued_s": pytest.approx(QUEUED_S),
        "completion_s": pytest.approx(COMPLETION_S),
    }
    assert {chunk.id for chunk in chunks} == {chunks[0].id}
    assert chunks[0].id.startswith("cmpl-")


async def test_a_whole_answer_equals_the_stream(door: Door) -> None:
    tokens = door.script(TEXT)
    answer = await door.openai.completions.create(model="tiny", prompt="The", max_tokens=99)
    assert answer.object == "text_completion"
    assert answer.choices[0].text == TEXT
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(tokens)
    assert answer.usage.model_extra is not None
    assert answer.usage.model_extra["exegpt"]["queued_s"] == pytest.approx(QUEUED_S)


async def test_a_text_prompt_is_framed_by_the_tokenizer_and_ids_are_taken_as_they_are(
    door: Door,
) -> None:
    door.script("a")
    for prompt in ("The", ["The"], [5, 6], [[7, 8]], ""):
        await door.openai.completions.create(model="tiny", prompt=prompt)
    framed = door.served.tokenizer.encode("The", add_special_tokens=True)
    assert [prompt for prompt, _ in door.conductor.submitted] == [
        framed,
        framed,
        [5, 6],
        [7, 8],
        [0],
    ]


async def test_defaults_are_openais(door: Door) -> None:
    door.script("a")
    for _ in range(2):
        await door.openai.completions.create(model="tiny", prompt="The")
    (_, first), (_, second) = door.conductor.submitted
    assert (first.max_tokens, first.temperature, first.top_p, first.top_k) == (16, 1.0, 1.0, 0)
    assert first.end_tokens == (2,)
    assert first.seed != second.seed
    assert max(first.seed, second.seed) >= 2**32  # fails once in 2**63 runs


async def test_parameters_reach_the_sampler(door: Door) -> None:
    door.script("a")
    await door.openai.completions.create(
        model="tiny",
        prompt="The",
        max_tokens=7,
        temperature=0,
        top_p=0.5,
        seed=-1,
        extra_body={"top_k": 4, "min_tokens": 2, "stop_token_ids": [9]},
    )
    assert door.conductor.submitted[0][1] == SamplingParams(
        temperature=0,
        top_k=4,
        top_p=0.5,
        seed=2**64 - 1,
        max_tokens=7,
        min_tokens=2,
        end_tokens=(2, 9),
    )


async def test_ignoring_the_end_keeps_the_stop_tokens_of_the_request(door: Door) -> None:
    door.script("a")
    await door.openai.completions.create(
        model="tiny", prompt="The", extra_body={"ignore_eos": True, "stop_token_ids": [9]}
    )
    assert door.conductor.submitted[0][1].end_tokens == (9,)


async def test_a_stop_string_over_several_chunks_ends_the_answer_and_the_query(door: Door) -> None:
    tokens = door.script("The lazy dog. STOP HERE and more", finish=None)
    stream = await door.openai.completions.create(
        model="tiny", prompt="The", stop=["never", "STOP HERE"], stream=True
    )
    choices = [chunk.choices[0] async for chunk in stream]
    assert "".join(choice.text for choice in choices) == "The lazy dog. "
    assert choices[-1].finish_reason == "stop"
    assert door.conductor.cancelled == {0}
    answer = await door.openai.completions.create(model="tiny", prompt="The", stop="STOP HERE")
    assert answer.choices[0].text == "The lazy dog. "
    assert answer.usage is not None
    assert answer.usage.completion_tokens < len(tokens)


async def test_the_beginning_of_a_stop_string_is_delivered_at_the_end(door: Door) -> None:
    door.script("The lazy STO")
    answer = await door.openai.completions.create(model="tiny", prompt="The", stop="STOP")
    assert answer.choices[0].text == "The lazy STO"
    assert answer.choices[0].finish_reason == "length"


async def test_stop_strings_wait_for_the_least_tokens(door: Door) -> None:
    tokens = door.script("ab ab ab", finish=None)
    first_ab = len(door.served.tokenizer.encode("ab", add_special_tokens=False))
    answer = await door.openai.completions.create(
        model="tiny", prompt="The", stop="ab", extra_body={"min_tokens": first_ab}
    )
    assert answer.choices[0].text == "ab "
    assert len(tokens) > first_ab


async def test_an_end_token_is_counted_but_is_no_text(door: Door) -> None:
    tokens = door.script("The dog")
    dot = door.served.tokenizer.encode(".", add_special_tokens=False)
    door.conductor.script, door.conductor.finish = [*tokens, *dot], "stop"
    answer = await door.openai.completions.create(
        model="tiny", prompt="The", extra_body={"stop_token_ids": dot}
    )
    assert answer.choices[0].text == "The dog"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(tokens) + 1


async def test_a_character_cut_at_the_limit_shows_as_the_decode_shows_it(door: Door) -> None:
    tokens = door.script("a 𝄞")[:-1]
    door.conductor.script = tokens
    expected = door.served.tokenizer.decode(tokens)
    assert expected.endswith("\ufffd")
    stream = await door.openai.completions.create(model="tiny", prompt="The", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == expected


async def test_tokens_arrive_one_by_one_as_they_are_sampled(door: Door) -> None:
    tokens = door.script("The quick brown fox", finish=None)
    door.conductor.script = ()
    stream = await door.openai.completions.create(model="tiny", prompt="The", stream=True)
    for token in tokens:
        door.conductor.streams[0].push(TokenEvent(token))
        chunk = await anext(stream)
        assert chunk.choices[0].text == door.served.tokenizer.decode([token])
    door.conductor.streams[0].push(TokenEvent(2, "stop"))
    assert (await anext(stream)).choices[0].finish_reason == "stop"


async def test_a_failure_inside_a_stream_is_told_in_it(door: Door) -> None:
    door.script("The", finish=None)
    stream = await door.openai.completions.create(model="tiny", prompt="The", stream=True)
    assert (await anext(stream)).choices[0].text
    door.conductor.streams[0].push(Unavailable("the worker is gone for good. Restart the server."))
    with pytest.raises(openai.APIError, match="gone for good"):
        [chunk async for chunk in stream]


async def test_a_failure_before_a_whole_answer_is_a_503(door: Door) -> None:
    door.script("The", finish=None)
    asking = asyncio.create_task(door.openai.completions.create(model="tiny", prompt="The"))
    await door.conductor.submit_came.wait()
    door.conductor.streams[0].push(Unavailable("the worker is gone for good. Restart the server."))
    with pytest.raises(openai.InternalServerError, match="gone for good") as caught:
        await asking
    assert caught.value.status_code == 503


async def test_long_prompts_are_read_beside_running_streams(door: Door) -> None:
    door.script("a")
    text = "The " * (IN_LOOP_BYTES // 4)
    answer = await door.http.post("/v1/completions", json={"model": "tiny", "prompt": text})
    assert answer.status_code == 400
    assert "leave no room in the context of 256" in answer.json()["error"]["message"]


async def test_the_wire_format_is_openais(door: Door) -> None:
    door.script("a")
    body = {"model": "tiny", "prompt": "Hi", "stream": True}
    answer = await door.http.post("/v1/completions", json=body)
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert [chunk["choices"] for chunk in chunks] == [
        [{"index": 0, "text": "a", "logprobs": None, "finish_reason": None}],
        [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}],
    ]
    assert all("usage" not in chunk for chunk in chunks)
