"""One worker as the conductor sees it: its connection, the queries it holds, and one step under way at a time.

The lane keeps connected and carries messages; what to do next and what a result means is its conductor's to say. News
of transfers come between steps and in their results.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from exegpt_gateway.hand_overs import Transfer
from exegpt_gateway.messages import drop_command
from exegpt_gateway.policies import StepPlan
from exegpt_gateway.pool import Pool
from exegpt_gateway.worker_link import WorkerLink, WorkerLost
from exegpt_planner.errors import Unavailable
from exegpt_wire import worker_pb2

BACK_OFF_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # between attempts to connect; the last repeats


@dataclass(slots=True)
class Step:
    """A step under way."""

    plan: StepPlan
    command: worker_pb2.Command
    num_tokens: int = 0  # in its first iteration
    transfer: Transfer | None = None  # what its chunks' queries leave by
    is_first: bool = True  # no result of it has come yet
    overrun: set[int] = field(
        default_factory=set
    )  # queries that got tokens after they were dropped

    @property
    def sequence(self) -> int:
        """Its number."""
        return self.command.step.sequence


class Host(Protocol):
    """The conductor, as a lane needs it."""

    def next_step(self, lane: Lane) -> Step | None:
        """The next step of this lane, its queries moved accordingly, or None when there is nothing to do."""

    def sent(self) -> None:
        """A worker has its step: time to hand out what has come so far, and to show the pool."""

    def hand_out(self) -> None:
        """A worker is at its next iteration: time to hand out what has come so far."""

    def apply(
        self, lane: Lane, step: Step, result: worker_pb2.IterationResult, at_s: float
    ) -> None:
        """A result of the step; what can wait until the next step is sent waits."""

    def news(self, lane: Lane, result: worker_pb2.IterationResult) -> None:
        """What came and went, from any message of the worker."""

    def finished(self, step: Step, seconds: float) -> None:
        """The step's last result has come."""

    def rests(self) -> bool:
        """Nothing is to do for a lane now; whether it may end."""

    def connected(self, lane: Lane) -> None:
        """The worker is there, and empty."""

    def lost(self, lane: Lane, error: WorkerLost) -> None:
        """The worker is gone, and with it all it held."""


class Lane:
    """One worker's loop."""

    def __init__(self, index: int, link: WorkerLink, pool: Pool) -> None:
        self.index = index
        self.link = link
        self.pool = pool
        self.is_connected = False
        self.connections = 0  # made so far: tells one from the next
        self._drops: list[int] = []
        self._dropped_transfers: list[int] = []
        self._drop_asked = asyncio.Event()
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Has an idle lane look again for something to do."""
        self._changed.set()

    def drop(self, *, queries: Iterable[int] = (), transfers: Iterable[int] = ()) -> None:
        """Has the worker forget these at its next iteration."""
        self._drops += queries
        self._dropped_transfers += transfers
        self._drop_asked.set()

    async def run(self, host: Host) -> None:
        """Serves until the host says that it may end; raises WorkerRefused when no retry helps."""
        attempts = 0
        while True:
            try:
                await self.link.connect()
                self.is_connected, attempts = True, 0
                self.connections += 1
                host.connected(self)
                await self._serve(host)
                return
            except WorkerLost as error:
                if self.is_connected:
                    self.is_connected = False
                    self._drops.clear()
                    self._dropped_transfers.clear()
                    host.lost(self, error)
                if host.rests():
                    return
                await asyncio.sleep(BACK_OFF_S[min(attempts, len(BACK_OFF_S) - 1)])
                attempts += 1

    async def close(self) -> None:
        """Closes the connection."""
        self.is_connected = False
        await self.link.close()

    async def _serve(self, host: Host) -> None:
        dropper = asyncio.ensure_future(self._send_drops_when_asked())
        try:
            while True:
                self._changed.clear()
                step = host.next_step(self)
                if step is not None:
                    await self._run(host, step)
                elif host.rests():
                    return
                else:
                    await self._idle(host)
        finally:
            dropper.cancel()

    async def _idle(self, host: Host) -> None:
        """Until something has changed, or the worker has news or is lost."""
        changed = asyncio.ensure_future(self._changed.wait())
        heard = asyncio.ensure_future(self.link.heard())
        try:
            await asyncio.wait((changed, heard), return_when=asyncio.FIRST_COMPLETED)
        finally:
            changed.cancel()
            heard.cancel()
        if heard.done() and not heard.cancelled():
            result = await self.link.receive(0)  # raises what broke the stream
            if result.sequence:
                raise WorkerLost(
                    f"a result of step {result.sequence} came while none was under way."
                )
            host.news(self, result)

    async def _run(self, host: Host, step: Step) -> None:
        begun_s = time.monotonic()
        await self._send_drops()
        await self.link.send(step.command)
        host.sent()
        is_last = False
        while not is_last:
            result = await self.link.receive(step.num_tokens)
            received_s = time.monotonic()
            if result.sequence == 0:
                host.news(self, result)
                continue
            if result.sequence != step.sequence:
                raise WorkerLost(
                    f"a result of step {result.sequence} came in step {step.sequence}."
                )
            host.apply(self, step, result, received_s)
            is_last = result.last
            if not is_last:
                host.hand_out()
        host.finished(step, time.monotonic() - begun_s)

    async def _send_drops(self) -> None:
        if self._drops or self._dropped_transfers:
            command = drop_command(self._drops, self._dropped_transfers)
            self._drops, self._dropped_transfers = [], []
            await self.link.send(command)

    async def _send_drops_when_asked(self) -> None:
        while True:
            await self._drop_asked.wait()
            self._drop_asked.clear()
            with contextlib.suppress(Unavailable):  # whoever reads the stream takes care of it
                await self._send_drops()
