"""HTTP, conductor and wire together, over a worker that answers by arithmetic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from prometheus_client import CollectorRegistry

from conductors import build_conductor
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.served import ServedModel
from exegpt_planner.schedule import RraSchedule
from fake_worker import FakeWorker
from gateway.http.front_door import Door, open_door
from toy_model import answer

SCHEDULE = RraSchedule(encode_batch=4, encode_interval=2)


@asynccontextmanager
async def whole_gateway(
    served: ServedModel, folder: Path
) -> AsyncIterator[tuple[Door, FakeWorker, Conductor]]:
    worker = FakeWorker(folder / "worker.sock")
    await worker.start()
    metrics = Metrics(CollectorRegistry())
    conductor = build_conductor(worker, SCHEDULE, context=served.context, metrics=metrics)
    conducting = asyncio.create_task(conductor.run())
    try:
        async with open_door(served, conductor, metrics=metrics) as door:
            yield door, worker, conductor
    finally:
        conducting.cancel()
        with suppress(asyncio.CancelledError):
            await conducting
        await worker.kill()


async def test_concurrent_answers_are_the_models_and_carry_their_times(
    served: ServedModel, tmp_path: Path
) -> None:
    prompts = [[10 + n, 20, 30] for n in range(6)]
    async with whole_gateway(served, tmp_path) as (door, _, _):
        answers = await asyncio.gather(
            *(
                door.openai.completions.create(model="tiny", prompt=prompt, max_tokens=5 + n)
                for n, prompt in enumerate(prompts)
            )
        )
    for n, (prompt, found) in enumerate(zip(prompts, answers, strict=True)):
        tokens = answer(prompt, 5 + n, end_tokens=[2])
        is_ended = tokens[-1] == 2
        spoken = tokens[:-1] if is_ended else tokens
        after = served.tokenizer.decode([*prompt[-1:], *spoken])
        assert served.tokenizer.decode(prompt[-1:]) + found.choices[0].text == after
        assert found.choices[0].finish_reason == ("stop" if is_ended else "length")
        assert found.usage is not None
        assert found.usage.completion_tokens == len(tokens)
        assert found.usage.model_extra is not None
        times = found.usage.model_extra["exegpt"]
        assert times["queued_s"] >= 0
        assert times["completion_s"] > 0


async def test_a_client_that_leaves_is_dropped_by_the_worker(
    served: ServedModel, tmp_path: Path
) -> None:
    async with whole_gateway(served, tmp_path) as (door, worker, _):
        await worker.hold_after(3)
        stream = await door.openai.completions.create(
            model="tiny", prompt=[10, 20], max_tokens=200, stream=True
        )
        await worker.reached(3)
        await stream.close()
        await worker.until(lambda worker: 1 in worker.dropped)
        await worker.release()


async def test_a_stop_string_ends_the_query_as_answered(
    served: ServedModel, tmp_path: Path
) -> None:
    tokens = answer([10, 20], 6)
    stop = served.tokenizer.decode(tokens)[-3:]
    async with whole_gateway(served, tmp_path) as (door, worker, _):
        await worker.hold_after(7)
        found = await door.openai.completions.create(
            model="tiny", prompt=[10, 20], max_tokens=200, stop=stop
        )
        await worker.until(lambda worker: 1 in worker.dropped)
        await worker.release()
        metrics = (await door.http.get("/metrics")).text
    assert found.choices[0].finish_reason == "stop"
    assert stop not in found.choices[0].text
    assert found.usage is not None
    assert found.usage.model_extra is not None
    assert found.usage.model_extra["exegpt"]["completion_s"] > 0
    assert 'exegpt_queries_total{outcome="stop"} 1.0' in metrics
    assert 'outcome="cancelled"' not in metrics


async def test_streams_go_on_over_a_restarted_worker(served: ServedModel, tmp_path: Path) -> None:
    async with whole_gateway(served, tmp_path) as (door, worker, _):
        await worker.hold_after(3)
        stream = await door.openai.completions.create(
            model="tiny",
            prompt=[10, 20],
            max_tokens=12,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        await worker.reached(3)
        await worker.restart()
        text = "".join([chunk.choices[0].text async for chunk in stream])
    context = served.tokenizer.decode([20])
    assert context + text == served.tokenizer.decode([20, *answer([10, 20], 12)])


async def test_draining_ends_the_conductor_after_its_last_stream(
    served: ServedModel, tmp_path: Path
) -> None:
    async with whole_gateway(served, tmp_path) as (door, worker, conductor):
        await worker.hold_after(2)
        stream = await door.openai.completions.create(
            model="tiny", prompt=[10, 20], max_tokens=8, stream=True
        )
        await worker.reached(2)
        conductor.drain()
        door.stop.set()
        assert (await door.http.get("/readyz")).status_code == 503
        assert (await door.http.post("/v1/completions", json=BODY)).status_code == 503
        await worker.release()
        reasons = [chunk.choices[0].finish_reason async for chunk in stream]
        assert reasons[-1] in {"stop", "length"}
        await door.server


BODY = {"model": "tiny", "prompt": "Hi"}
