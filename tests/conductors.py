"""A conductor on a fake worker, for tests."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from prometheus_client import CollectorRegistry

from exegpt_gateway.conductor import Conductor
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.query import QueryStream, SamplingParams
from exegpt_gateway.step_log import StepLog
from exegpt_gateway.worker_link import Patience, WorkerLink
from exegpt_planner.schedule import AnySchedule
from exegpt_wire import worker_pb2
from fake_worker import FakeWorker
from toy_model import answer

MakeWorker = Callable[..., Awaitable[FakeWorker]]
Serve = Callable[[Conductor], "asyncio.Task[None]"]


def build_conductor(
    worker: FakeWorker | Sequence[FakeWorker],
    schedule: AnySchedule,
    *,
    max_waiting: int = 1000,
    context: int = 4096,
    patience: Patience | None = None,
    on_hung: Callable[[], None] | None = None,
    metrics: Metrics | None = None,
    step_log: StepLog | None = None,
) -> Conductor:
    """A conductor for this worker, or these; nothing runs yet."""
    workers = [worker] if isinstance(worker, FakeWorker) else worker
    configure = worker_pb2.ConfigureRequest(
        model_path="/models/toy", dtype="float32", kv_tokens=workers[0].kv_tokens
    )
    return Conductor(
        [
            WorkerLink(each.address, configure, patience=patience, on_hung=on_hung)
            for each in workers
        ],
        schedule=schedule,
        kv_tokens=workers[0].kv_tokens,
        context=context,
        max_waiting=max_waiting,
        metrics=metrics or Metrics(CollectorRegistry()),
        step_log=step_log,
    )


def greedy(num: int, *, end_tokens: Sequence[int] = ()) -> SamplingParams:
    """Sampling of at most `num` tokens of the toy model."""
    return SamplingParams(temperature=0, max_tokens=num, end_tokens=tuple(end_tokens))


async def collect(stream: QueryStream) -> list[int]:
    """All tokens of a stream."""
    return [event.token async for event in stream]


async def collect_all(streams: Sequence[QueryStream]) -> list[list[int]]:
    """All tokens of each stream."""
    return list(await asyncio.gather(*(collect(stream) for stream in streams)))


async def eventually(condition: Callable[[], bool]) -> None:
    """Lets the loop run until it holds; the test's own timeout ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0)


async def restless_client(
    conductor: Conductor, rng: random.Random, query: int, *, comes_within: int = 200
) -> None:
    """Comes some time, asks something, and may leave before it has all of the answer."""
    for _ in range(rng.randrange(comes_within)):
        await asyncio.sleep(0)
    prompt = [rng.randrange(256) for _ in range(rng.randint(1, 150))]
    length = rng.randint(1, 100)
    stream = conductor.submit(prompt, greedy(length))
    leaves_after = rng.randint(0, length) if rng.random() < 0.3 else None
    if leaves_after is None:
        assert await collect(stream) == answer(prompt, length), f"query {query}"
        return
    got = [(await anext(stream)).token for _ in range(leaves_after)]
    assert got == answer(prompt, leaves_after), f"query {query}"
    stream.cancel()
