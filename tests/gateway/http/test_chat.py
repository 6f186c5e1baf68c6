from __future__ import annotations

import json
from dataclasses import replace

import openai
import pytest

from exegpt_gateway.chat_template import ChatTemplate
from exegpt_gateway.served import ServedModel
from gateway.http.front_door import Door, open_door

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "Paris. 你好 😀"


async def test_the_template_words_the_prompt_with_each_special_token_once(door: Door) -> None:
    door.script(TEXT)
    await door.openai.chat.completions.create(
        model="tiny",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}],
            },
        ],
    )
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi\nyou<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    prompt, _ = door.conductor.submitted[0]
    assert prompt == door.served.tokenizer.encode(expected, add_special_tokens=False)


async def test_a_template_that_writes_the_begin_token_gets_no_second_one(
    served: ServedModel,
) -> None:
    template = ChatTemplate(
        "{{ bos_token }}{{ messages[0].content }}", special_texts=served.tokenizer.special_texts
    )
    async with open_door(replace(served, chat_template=template)) as door:
        door.script(TEXT)
        await door.openai.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi"}]
        )
        assert door.conductor.submitted[0][0].count(0) == 1


async def test_a_whole_answer(door: Door) -> None:
    tokens = door.script(TEXT)
    door.conductor.script, door.conductor.finish = [*tokens, 2], "stop"
    answer = await door.openai.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hi"}]
    )
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(tokens) + 1


async def test_without_a_limit_what_remains_of_the_context_is_asked_for(door: Door) -> None:
    door.script(TEXT)
    await door.openai.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "Hi"}]
    )
    prompt, sampling = door.conductor.submitted[0]
    assert sampling.max_tokens == door.served.context - len(prompt)


async def test_a_stream_opens_with_the_role_and_closes_with_the_reason(door: Door) -> None:
    door.script(TEXT)
    stream = await door.openai.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Hi"}],
        max_completion_tokens=20,
        stream=True,
    )
    chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert "".join(delta.content or "" for delta in deltas) == TEXT
    assert deltas[-1].model_dump(exclude_none=True) == {}
    assert chunks[-1].choices[0].finish_reason == "length"
    assert all(chunk.usage is None for chunk in chunks)
    assert door.conductor.submitted[0][1].max_tokens == 20


async def test_the_wire_format_is_openais(door: Door) -> None:
    door.script("a")
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer = await door.http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert [chunk["choices"] for chunk in chunks] == [
        [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": ""},
                "logprobs": None,
                "finish_reason": None,
            }
        ],
        [{"index": 0, "delta": {"content": "a"}, "logprobs": None, "finish_reason": None}],
        [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}],
        [],
    ]
    assert [chunk["usage"] is None for chunk in chunks] == [True, True, True, False]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


async def test_a_model_without_a_template_says_so(served: ServedModel) -> None:
    async with open_door(replace(served, chat_template=None)) as door:
        with pytest.raises(openai.BadRequestError, match="tiny has no chat template; use /v1/comp"):
            await door.openai.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "Hi"}]
            )


async def test_what_the_template_refuses_is_a_bad_request(served: ServedModel) -> None:
    template = ChatTemplate("{{ raise_exception('no system role') }}", special_texts={})
    async with open_door(replace(served, chat_template=template)) as door:
        with pytest.raises(openai.BadRequestError, match="no system role"):
            await door.openai.chat.completions.create(
                model="tiny", messages=[{"role": "system", "content": "Hi"}]
            )
