from __future__ import annotations

import pytest

from gateway.http.front_door import COMPLETION_S, QUEUED_S, Door

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
