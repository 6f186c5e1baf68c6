"""Workers, a conductor for them, and queries whose undisturbed answers are known."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from conductors import greedy
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.query import QueryStream
from exegpt_gateway.worker_link import WorkerLink
from exegpt_planner.errors import ExeGPTError
from exegpt_planner.schedule import AnySchedule, WaaSchedule
from exegpt_wire import worker_pb2
from faults.relay import Relay, RelayedLink
from faults.workers import Nursery, Worker

PROMPTS = [[3 + (7 * n + step) % 90 for step in range(5 + 9 * (n % 8))] for n in range(16)]
LENGTHS = [1, 40, 7, 90, 23, 60, 12, 75, 33, 5, 50, 110, 2, 64, 28, 17]
TOTAL = sum(LENGTHS)
KV_TOKENS = 64 * 64
WAA = WaaSchedule(encoders=1, decoders=1, encode_batch=3, pool=6)
TWO_AND_ONE = WaaSchedule(encoders=2, decoders=1, encode_batch=2, pool=6)


class Load:
    """Queries under way, and the tokens that have come."""

    def __init__(self, conductor: Conductor) -> None:
        self.answers: list[list[int]] = [[] for _ in PROMPTS]
        self.errors: list[ExeGPTError] = []
        self.num_seen = 0
        self._came = asyncio.Condition()
        self._reading = [
            asyncio.ensure_future(self._read(answer, conductor.submit(prompt, greedy(length))))
            for answer, prompt, length in zip(self.answers, PROMPTS, LENGTHS, strict=True)
        ]

    async def reached(self, tokens: int) -> None:
        """Returns once so many tokens have come."""
        async with self._came:
            await self._came.wait_for(lambda: self.num_seen >= tokens)

    async def finished(self) -> list[list[int]]:
        """All answers, once they are complete or have failed."""
        await asyncio.gather(*self._reading)
        return self.answers

    async def _read(self, answer: list[int], stream: QueryStream) -> None:
        try:
            async for event in stream:
                answer.append(event.token)
                self.num_seen += 1
                async with self._came:
                    self._came.notify_all()
        except ExeGPTError as error:
            self.errors.append(error)


@dataclass
class Rig:
    """A model and workers for it, encoders first; at most as many run as tests have asked for."""

    nursery: Nursery
    model: Path
    folder: Path
    workers: list[Worker] = field(default_factory=list)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    on_hung: Callable[[Worker], None] = Worker.restart

    def up_to(self, number: int) -> list[Worker]:
        """The first so many workers, each with a running process."""
        while len(self.workers) < number:
            worker = Worker(self.nursery, self.folder / f"worker{len(self.workers)}.sock")
            worker.start()
            self.workers.append(worker)
        return self.workers[:number]

    def configure(self, **fields: Any) -> worker_pb2.ConfigureRequest:
        """What a worker is to hold."""
        given: dict[str, Any] = {"dtype": "float64", "kv_tokens": KV_TOKENS}
        return worker_pb2.ConfigureRequest(**{"model_path": str(self.model)} | given | fields)

    def link(self, worker: Worker, relay: Relay | None = None, **options: Any) -> WorkerLink:
        """A connection to `worker`, whose KV comes over `relay`."""
        configure = options.pop("configure", self.configure())
        options = {"on_hung": lambda: self.on_hung(worker)} | options
        if relay is None:
            return WorkerLink(worker.address, configure, **options)
        link = RelayedLink(worker.address, configure, **options)
        link.relay = relay
        return link

    @asynccontextmanager
    async def conducting(
        self, links: Sequence[WorkerLink], schedule: AnySchedule, *, kv_tokens: int = KV_TOKENS
    ) -> AsyncIterator[Conductor]:
        """A conductor that is ready; it must end in good order."""
        self.registry = CollectorRegistry()
        conductor = conductor_of(links, schedule, self.registry, kv_tokens=kv_tokens)
        running = asyncio.ensure_future(conductor.run())
        try:
            await ready(conductor, running)
            yield conductor
            conductor.drain()
            await asyncio.wait_for(running, 10)
        finally:
            running.cancel()
            await asyncio.wait((running,))

    @asynccontextmanager
    async def waa(self, schedule: WaaSchedule = WAA) -> AsyncIterator[tuple[Conductor, Relay]]:
        """A conductor of as many workers as `schedule` needs, the way into the last one relayed."""
        workers = self.up_to(schedule.encoders + schedule.decoders)
        async with self.relayed(workers[-1]) as relay:
            links = [self.link(each) for each in workers[:-1]]
            links.append(self.link(workers[-1], relay))
            async with self.conducting(links, schedule) as conductor:
                yield conductor, relay

    @asynccontextmanager
    async def relayed(self, decoder: Worker) -> AsyncIterator[Relay]:
        """A relay before `decoder`."""
        relay = Relay(self.folder / "relay.sock", decoder.address)
        await relay.start()
        try:
            yield relay
        finally:
            await relay.close()

    def metric(self, name: str, **labels: str) -> float:
        """A metric of the latest conductor, 0 if it never came."""
        return self.registry.get_sample_value(name, labels) or 0.0


def conductor_of(
    links: Sequence[WorkerLink],
    schedule: AnySchedule,
    registry: CollectorRegistry | None = None,
    *,
    kv_tokens: int = KV_TOKENS,
) -> Conductor:
    """A conductor that nobody runs yet."""
    return Conductor(
        links,
        schedule=schedule,
        kv_tokens=kv_tokens,
        context=512,
        max_waiting=100,
        metrics=Metrics(registry or CollectorRegistry()),
    )


async def ready(conductor: Conductor, running: asyncio.Future[None]) -> None:
    """Returns once queries would be served; raises what ended the conductor before."""
    while not conductor.ready:
        if running.done():
            running.result()
        await asyncio.sleep(0.01)
