"""The operator's process beside its watches: who holds the Lease, what is listed now and then, and how it ends."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any, TypeVar

from aiohttp import web

from exegpt_operator.api import Api, ApiRefused
from exegpt_operator.health import Health
from exegpt_operator.lease import (
    LEASE_S,
    RENEW_S,
    Neighbours,
    neighbours,
    next_lease,
    released_lease,
)
from exegpt_operator.loop import KINDS, Key, Loop
from exegpt_operator.metrics import OperatorMetrics
from exegpt_operator.planner_process import Planner
from exegpt_operator.work_queue import Queue

log = logging.getLogger(__name__)

LEASE = "exegpt-operator"
RESYNC_S = 300.0
MARGIN_S = 2.0  # before the Lease ends, within which nothing is begun any more
ENDING_S = 4.0  # for calls under way, of the ten seconds that a pod is given
T = TypeVar("T")


class Process:
    """One operator, active or waiting for the Lease."""

    def __init__(
        self,
        api: Api,
        loop: Loop,
        metrics: OperatorMetrics,
        *,
        planner: Planner,
        threads: ThreadPoolExecutor,
    ) -> None:
        """`threads` are those that `loop` acts in."""
        self._api, self._loop, self._metrics = api, loop, metrics
        self._planner, self._threads = planner, threads
        self._lease_thread = ThreadPoolExecutor(1)  # in time, however much there is to look at
        self._tasks: list[asyncio.Task[Any]] = []
        self.is_active = False
        self.is_quiet = False  # nothing is under way any more
        self._neighbours = Neighbours()
        self._held_until_s = 0.0
        self.queue: Queue[Key] = Queue(self._look, self._look_failed)
        self.health = Health(self.queue.age_s)
        loop.named = self.queue.add
        loop.may_act = self._may_act
        metrics.keys.set_function(lambda: len(self.queue))
        metrics.queue_depth.set_function(lambda: self.queue.depth)
        metrics.queue_age.set_function(self.queue.age_s)
        metrics.watch_age.set_function(lambda: self.health.watch_age_s)

    def named(self, key: Key) -> None:
        """Something moved; whoever plans by a profile is concerned too."""
        self.queue.add(key)
        if key.kind == "profile":
            for other in self.queue.watched():
                if other.kind == "deployment" and other.namespace == key.namespace:
                    self.queue.add(other)

    def start(self, *, namespace: str, holder: str, scope: str | None, health_port: int) -> None:
        """Begins its rounds; `scope` is the namespace that is looked after, None: all of them."""
        rounds = {
            "the lease": self._rounds(
                "the lease", functools.partial(self._keep_lease, namespace, holder, scope)
            ),
            "the resync": self._rounds("the resync", functools.partial(self._resync, scope)),
            "health": self._serve_health(health_port),
        }
        for name, work in rounds.items():
            task = asyncio.get_running_loop().create_task(work)
            self._tasks.append(task)
            task.add_done_callback(functools.partial(_end_with, name))
        self._tasks.append(asyncio.get_running_loop().create_task(self._planner.start()))

    async def end(self, *, namespace: str, holder: str) -> None:
        """Stops acting, then lets another operator act at once.

        The Lease of an operator that still has a call under way is left to run out.
        """
        was_active, self.is_active = self.is_active, False
        for task in self._tasks:
            task.cancel()
        self.queue.close()
        self._loop.close()
        await self._planner.close()
        running = asyncio.get_running_loop()
        self._threads.shutdown(wait=False, cancel_futures=True)
        quiet = running.run_in_executor(self._lease_thread, self._threads.shutdown)
        try:
            async with asyncio.timeout(ENDING_S):
                await quiet
                if was_active:
                    await self._on_lease(self._release, namespace, holder)
        except TimeoutError:
            log.warning("a call is still under way; the lease runs out by itself")
            return
        except ApiRefused as error:
            log.warning("cannot release the lease", extra={"problem": str(error)})
        self.is_quiet = True

    async def _look(self, key: Key) -> float | None:
        if not self.is_active or key.namespace in self._neighbours.own:
            return RENEW_S
        begin_s = time.monotonic()
        try:
            return await self._loop.look(key)
        finally:
            self._metrics.look_ended(key.kind, time.monotonic() - begin_s)

    def _look_failed(self, key: Key, error: Exception) -> None:
        self._metrics.look_failed(key.kind)
        if isinstance(error, ApiRefused):
            log.warning("cannot look", extra={"about": asdict(key), "problem": str(error)})
        else:
            log.error("cannot look", extra={"about": asdict(key)}, exc_info=error)

    async def _rounds(self, name: str, work: Callable[[], Awaitable[float]]) -> None:
        """Works, waits as long as it says, for ever; an API server that says no is asked again soon."""
        again_s = 0.0
        while True:
            self.health.turned(name, again_s=again_s)
            await asyncio.sleep(again_s)
            try:
                again_s = await work()
            except ApiRefused as error:
                log.warning(f"cannot do {name}", extra={"problem": str(error)})
                again_s = RENEW_S

    async def _keep_lease(self, namespace: str, holder: str, scope: str | None) -> float:
        begin_s = time.monotonic()
        try:
            held, version = await self._on_lease(self._renew, namespace, holder, scope)
            self.health.lease_is(version)
            if held and scope is None:
                leases = await self._on_lease(self._leases)
                found = neighbours(leases, namespace=namespace, now_s=time.time())
                if found != self._neighbours:
                    log.info("other operators", extra=asdict(found) | {"own": sorted(found.own)})
                self._neighbours = found
                held = not found.older
        except ApiRefused:
            if not self._may_act():  # else the Lease has not run out yet
                self._hold(False)
            raise
        if held:
            self._held_until_s = begin_s + LEASE_S - MARGIN_S
        self._hold(held)
        return RENEW_S

    def _may_act(self) -> bool:
        """Whether the Lease is ours, and cannot have run out while the API server did not answer."""
        return self.is_active and time.monotonic() < self._held_until_s

    def _hold(self, held: bool) -> None:
        if held != self.is_active:
            log.info("active" if held else "not active: another operator may hold the lease")
        self.is_active = held
        self._metrics.is_active.set(held)
        if not held:
            self._metrics.forget_all()

    def _leases(self) -> list[dict[str, Any]]:
        return self._api.list("Lease", None, fields={"metadata.name": LEASE})

    def _renew(self, namespace: str, holder: str, scope: str | None) -> tuple[bool, str]:
        """Whether the Lease is ours now, and its resource version as far as it is known."""
        lease = self._api.get("Lease", namespace, LEASE)
        wanted = next_lease(
            lease,
            name=LEASE,
            namespace=namespace,
            holder=holder,
            scope="cluster" if scope is None else "namespace",
            now_s=time.time(),
        )
        if lease is None:
            return wanted is not None and self._api.create(wanted), ""
        version = str(lease["metadata"]["resourceVersion"])
        if wanted is None:
            return False, version
        try:
            return True, str(self._api.replace(wanted)["metadata"]["resourceVersion"])
        except ApiRefused as error:
            if error.status == 409:  # another one was quicker
                return False, version
            raise

    def _release(self, namespace: str, holder: str) -> None:
        lease = released_lease(self._api.get("Lease", namespace, LEASE), holder=holder)
        if lease is not None:
            self._api.replace(lease)
            log.info("the lease is released")

    async def _resync(self, scope: str | None) -> float:
        """Names every resource there is: what an event was lost of is looked at all the same."""
        running = asyncio.get_running_loop()
        for word, (kind, _) in KINDS.items():
            for each in await running.run_in_executor(self._threads, self._api.list, kind, scope):
                metadata = each["metadata"]
                self.queue.add(Key(word, metadata["namespace"], metadata["name"]))
        self.health.listed()
        return RESYNC_S

    async def _serve_health(self, port: int) -> None:
        runner = web.AppRunner(self.health.app(), access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, port=port).start()
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    async def _on_lease(self, call: Callable[..., T], *args: Any) -> T:
        running = asyncio.get_running_loop()
        return await running.run_in_executor(self._lease_thread, call, *args)


def _end_with(name: str, task: asyncio.Task[None]) -> None:
    """A part that ends takes the process with it: the kubelet starts it anew."""
    if not task.cancelled():
        log.critical("%s has ended", name, exc_info=task.exception())
        logging.shutdown()
        os._exit(1)
