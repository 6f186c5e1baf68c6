"""A worker without a model: the real gRPC service in the test's own loop, answering by arithmetic.

Its next token is a function of *all* tokens before it, so an answer is right only if every encode, first or repeated,
read exactly prompt + output so far. Iterations take no time unless a gate holds them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import grpc
from grpc import aio

from exegpt_wire import GRPC_OPTIONS, PROTOCOL, worker_pb2
from exegpt_wire.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server
from toy_model import next_token

EXTENT = 64
_Inbox = asyncio.Queue[worker_pb2.Step | Literal["news"] | None]
_incarnations = itertools.count(1)
_by_address: dict[str, FakeWorker] = {}  # the running ones: who KV is handed to


@dataclass(frozen=True)
class SeenStep:
    """A step as the worker got it: chunks are (query, start, tokens, is_last)."""

    chunks: tuple[tuple[int, int, int, bool], ...]
    decode_with_chunks: bool
    decode_iterations: int
    retain_ended: bool = False


@dataclass
class _Slot:
    tokens: list[int]
    sampling: worker_pb2.Sampling
    num_generated: int
    in_decode: bool = False
    ended: bool = False

    @property
    def extents(self) -> int:
        return -(-len(self.tokens) // EXTENT)


@dataclass
class FakeWorker(WorkerServicer):
    """One worker process's worth of state; `restart` makes the next incarnation at the same address."""

    socket: Path
    kv_tokens: int = 1 << 20
    iteration_s: float = 0.0  # what its clocks say
    protocol: int = PROTOCOL
    refuse: str = ""  # answer Configure with this refusal
    steps: list[SeenStep] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    evicted: list[int] = field(default_factory=list)
    shapes: list[worker_pb2.Shape] = field(default_factory=list)
    configured: list[worker_pb2.ConfigureRequest] = field(default_factory=list)
    joined: list[int] = field(default_factory=list)  # queries, in order
    landed: list[int] = field(default_factory=list)  # transfers, in order
    forgotten: list[int] = field(default_factory=list)  # transfers
    refuse_kv: str = ""  # end every hand-over from here with this reason, probes too
    lose_kv: str = ""  # as above, but let probes pass
    holds_kv: bool = False  # what is handed over from here arrives when `let_go`
    holds_encoded: bool = False  # the result of an encode waits until `release`; its KV goes on

    def __post_init__(self) -> None:
        self.incarnation = next(_incarnations)
        self.epoch = 0
        self.iterations = 0
        self._stop_after: int | None = None
        self._moved = asyncio.Condition()
        self._slots: dict[int, _Slot] = {}
        self._drops: set[int] = set()
        self._landed: dict[int, dict[int, _Slot]] = {}  # by transfer
        self._arrived: list[int] = []
        self._handed: list[worker_pb2.Handed] = []
        self._withheld: list[tuple[worker_pb2.HandOver, dict[int, _Slot]]] = []
        self._inbox: _Inbox | None = None  # of the Run stream there is
        self._server: aio.Server | None = None

    @property
    def address(self) -> str:
        return f"unix://{self.socket}"

    # What a test does to it

    async def start(self) -> None:
        self._server = aio.server(options=list(GRPC_OPTIONS))
        add_WorkerServicer_to_server(self, self._server)
        assert self._server.add_insecure_port(self.address)
        await self._server.start()
        _by_address[self.address] = self

    async def kill(self) -> None:
        """Dies at once: streams break, KV is gone."""
        server, self._server = self._server, None
        self._inbox = None
        _by_address.pop(self.address, None)
        if server is not None:
            await server.stop(None)

    async def restart(self) -> None:
        await self.kill()
        self.incarnation = next(_incarnations)
        self.epoch = 0
        self._clear()
        self._stop_after = None
        await self.start()

    async def let_go(self) -> None:
        """What was held back arrives, and whatever comes after it."""
        self.holds_kv = False
        held, self._withheld = self._withheld, []
        for hand_over, slots in held:
            await self._hand_over(hand_over, slots)

    async def hold_after(self, iterations: int) -> None:
        """From now, waits before the iteration that follows so many in all."""
        self._stop_after = iterations
        await self._tell()

    async def release(self) -> None:
        self._stop_after = None
        self.holds_encoded = False
        await self._tell()

    async def until(self, condition: Callable[[FakeWorker], bool]) -> None:
        """Returns once it holds; looked at after every iteration and command."""
        async with self._moved:
            await self._moved.wait_for(lambda: condition(self))

    async def reached(self, iterations: int) -> None:
        """Returns once that many iterations have run."""
        await self.until(lambda worker: worker.iterations >= iterations)

    async def received(self, steps: int) -> None:
        """Returns once that many steps have come in."""
        await self.until(lambda worker: len(worker.steps) >= steps)

    # The service

    async def Describe(  # noqa: N802 - the service's name
        self, request: worker_pb2.DescribeRequest, context: grpc.ServicerContext
    ) -> worker_pb2.DescribeReply:
        return worker_pb2.DescribeReply(
            protocol=self.protocol,
            incarnation=self.incarnation,
            epoch=self.epoch,
            device="cpu: toy",
        )

    async def Configure(  # noqa: N802 - the service's name
        self,
        request: worker_pb2.ConfigureRequest,
        context: aio.ServicerContext[worker_pb2.ConfigureRequest, worker_pb2.ConfigureReply],
    ) -> worker_pb2.ConfigureReply:
        if self.refuse:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self.refuse)
        self.configured.append(request)
        self.epoch = request.epoch
        self._inbox = None
        self._clear()
        await self._tell()
        return worker_pb2.ConfigureReply(
            incarnation=self.incarnation, epoch=self.epoch, kv_tokens=self.kv_tokens
        )

    async def Run(  # noqa: N802 - the service's name
        self,
        request_iterator: AsyncIterator[worker_pb2.Command],
        context: aio.ServicerContext[worker_pb2.Command, worker_pb2.IterationResult],
    ) -> AsyncIterator[worker_pb2.IterationResult]:
        steps = self._inbox = _Inbox()
        await context.send_initial_metadata(())
        reader = asyncio.ensure_future(self._sort(request_iterator, steps))
        try:
            while (step := await steps.get()) is not None:
                if step == "news":
                    if self._arrived or self._handed:
                        yield self._with_news(worker_pb2.IterationResult())
                    continue
                await self._note(step)
                async for result in self._run(step):
                    yield self._with_news(result)
        finally:
            reader.cancel()

    def Measure(  # noqa: N802 - the service's name
        self, request: worker_pb2.MeasureRequest, context: grpc.ServicerContext
    ) -> AsyncIterator[worker_pb2.Measurement]:
        raise NotImplementedError("a toy has nothing to measure")

    async def _sort(self, commands: AsyncIterator[worker_pb2.Command], steps: _Inbox) -> None:
        async for command in commands:
            if command.HasField("step"):
                steps.put_nowait(command.step)
                continue
            self._drops.update(command.drop.queries)
            self.dropped.extend(command.drop.queries)
            self.forgotten.extend(command.drop.transfers)
            for transfer in command.drop.transfers:
                self._landed.pop(transfer, None)
            await self._tell()
        steps.put_nowait(None)

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()

    async def _note(self, step: worker_pb2.Step) -> None:
        self.steps.append(
            SeenStep(
                tuple((c.query, c.start, len(c.tokens), c.last) for c in step.chunks),
                step.decode_with_chunks,
                step.decode_iterations,
                step.retain_ended,
            )
        )
        await self._tell()

    async def _run(self, step: worker_pb2.Step) -> AsyncIterator[worker_pb2.IterationResult]:
        """One result an iteration; exactly one of them, if need be an empty one, is the last."""
        left, chunks = step.decode_iterations, list(step.chunks)
        self._join(step)
        for each in step.hand_overs:
            if not each.queries:
                await self._hand_over(each, {})
        if not chunks and not (left and self._decoding()):
            yield self._report(step, last=True)
            return
        while chunks or (left and self._decoding()):
            await self._gate()
            self._drop_asked()
            result = worker_pb2.IterationResult(sequence=step.sequence)
            if not chunks or step.decode_with_chunks:
                self._decode(result, retain=step.retain_ended)
            if chunks:
                encoded = [slot for chunk in chunks for slot in self._encode(chunk, result)]
                chunks = []
                await self._hand_over_encoded(step, dict(encoded))
            else:
                left -= 1
            if step.retain_ended and all(each.ended for each in self._slots.values()):
                self._slots.clear()
            result.MergeFrom(self._report(step, last=not (left and self._decoding())))
            self.shapes.append(result.shape)
            self.iterations += 1
            await self._tell()
            yield result

    def _clear(self) -> None:
        self._slots.clear()
        self._landed.clear()
        self._arrived.clear()
        self._handed.clear()
        self._withheld.clear()

    def _with_news(self, result: worker_pb2.IterationResult) -> worker_pb2.IterationResult:
        result.arrived.extend(self._arrived)
        result.handed.extend(self._handed)
        self._arrived, self._handed = [], []
        return result

    async def _hand_over_encoded(self, step: worker_pb2.Step, encoded: dict[int, _Slot]) -> None:
        """KV leaves while its encode computes, so also that of a query which its first token ends."""
        for each in step.hand_overs:
            await self._hand_over(each, {q: encoded[q] for q in each.queries if q in encoded})
            for query in each.queries:
                self._slots.pop(query, None)
        async with self._moved:
            await self._moved.wait_for(lambda: not self.holds_encoded)

    async def _hand_over(self, hand_over: worker_pb2.HandOver, slots: dict[int, _Slot]) -> None:
        """What a push would do, at once: the slots land at the worker it is meant for, or not."""
        if self.holds_kv and hand_over.queries:
            self._withheld.append((hand_over, slots))
            await self._tell()
            return
        target = _by_address.get(hand_over.address)
        meant = (hand_over.incarnation, hand_over.epoch)
        reason = self.refuse_kv or (self.lose_kv if hand_over.queries else "")
        if target is None or meant != (target.incarnation, target.epoch) or target._inbox is None:
            reason = reason or "unavailable"  # KV lands only while a stream runs
        elif not reason and slots:
            target._landed[hand_over.transfer] = slots
            target._arrived.append(hand_over.transfer)
            target.landed.append(hand_over.transfer)
            target._inbox.put_nowait("news")
            await target._tell()
        if self._inbox is not None:  # else nobody is there who knows of it
            problem = reason and f"toy: {reason}"
            self._handed.append(
                worker_pb2.Handed(transfer=hand_over.transfer, reason=reason, problem=problem)
            )
            self._inbox.put_nowait("news")
        await self._tell()

    def _join(self, step: worker_pb2.Step) -> None:
        for join in step.joins:
            slots = self._landed.pop(join.transfer)
            for each in join.queries:
                slot = self._slots[each.query] = slots[each.query]
                assert slot.tokens[-1] == each.token, "joined with another token than was sampled"
                assert slot.num_generated == each.num_generated
                slot.in_decode = True
                self.joined.append(each.query)

    async def _gate(self) -> None:
        async with self._moved:
            await self._moved.wait_for(
                lambda: self._stop_after is None or self.iterations < self._stop_after
            )

    def _decoding(self) -> bool:
        return any(each.in_decode for each in self._slots.values())

    def _report(self, step: worker_pb2.Step, *, last: bool) -> worker_pb2.IterationResult:
        return worker_pb2.IterationResult(
            sequence=step.sequence,
            last=last,
            active=len(self._slots),
            kv_tokens=self._held() * EXTENT,
            clocks=worker_pb2.Clocks(wall_s=self.iteration_s, cpu_s=self.iteration_s),
        )

    def _held(self) -> int:
        return sum(slot.extents for slot in self._slots.values())

    def _drop_asked(self) -> None:
        for query in self._drops:
            self._slots.pop(query, None)
        self._drops.clear()

    def _decode(self, result: worker_pb2.IterationResult, *, retain: bool) -> None:
        for query in [q for q, slot in self._slots.items() if slot.in_decode]:
            slot = self._slots.get(query)
            if slot is None:  # evicted by an older one's growth
                continue
            result.shape.decode_queries += 1
            result.shape.tokens += 1
            result.shape.decode_context += len(slot.tokens)
            if slot.ended:
                continue
            self._sample(query, result, retain=retain)

    def _encode(
        self, chunk: worker_pb2.Chunk, result: worker_pb2.IterationResult
    ) -> Iterator[tuple[int, _Slot]]:
        """Yields the query if its encode is over and it was not evicted."""
        if chunk.start == 0:
            self._slots[chunk.query] = _Slot([], chunk.sampling, chunk.num_generated)
        slot = self._slots.get(chunk.query)
        if slot is None:
            return
        assert len(slot.tokens) == chunk.start, f"chunk of {chunk.query} out of order"
        slot.tokens.extend(chunk.tokens)
        result.shape.encode_chunks += 1
        result.shape.tokens += len(chunk.tokens)
        self._make_room(result)
        if chunk.last and chunk.query in self._slots:
            slot.in_decode = True
            self._sample(chunk.query, result, retain=False)
            yield chunk.query, slot

    def _sample(self, query: int, result: worker_pb2.IterationResult, *, retain: bool) -> None:
        """Samples after the tokens held; the new one takes KV when it is computed, at the next iteration."""
        slot = self._slots[query]
        token = next_token(slot.tokens)
        slot.num_generated += 1
        result.shape.sampled += 1
        finish = worker_pb2.NONE
        if token in slot.sampling.end_tokens and not slot.sampling.ignore_eos:
            finish = worker_pb2.STOP
        elif slot.num_generated >= slot.sampling.max_tokens:
            finish = worker_pb2.LENGTH
        result.tokens.add(query=query, token=token, finish=finish)
        if finish == worker_pb2.NONE:
            slot.tokens.append(token)
            self._make_room(result)
        elif retain:
            slot.ended = True
        else:
            del self._slots[query]

    def _make_room(self, result: worker_pb2.IterationResult) -> None:
        while self._held() * EXTENT > self.kv_tokens:
            youngest = max(self._slots)
            del self._slots[youngest]
            result.evicted.append(youngest)
            self.evicted.append(youngest)
