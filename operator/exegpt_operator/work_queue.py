"""A level-triggered queue: a key is looked at once however often it was named, never twice at a time, and again later.

Errors back off a key alone; nothing is remembered that looking again would not show.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
FIRST_BACK_OFF_S = 0.5
MOST_BACK_OFF_S = 60.0


class Queue(Generic[K]):
    """Keys, each with a task of its own while there is something to do for it."""

    def __init__(
        self,
        look: Callable[[K], Awaitable[float | None]],
        failed: Callable[[K, Exception], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look` works on a key and returns the seconds until it is to be looked at again; None: it is gone.

        `failed` is told what a look raised; the key is looked at again after a back-off.
        """
        self._look, self._failed, self._clock = look, failed, clock
        self._wanted: dict[K, asyncio.Event] = {}
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self._since_s: dict[K, float] = {}  # of keys that wait for a look or are in one
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def depth(self) -> int:
        """Keys that wait for a look or are in one."""
        return len(self._since_s)

    def age_s(self) -> float:
        """The longest that one of them has: far beyond what a look takes, the queue is stuck."""
        return self._clock() - min(self._since_s.values(), default=self._clock())

    def watched(self) -> list[K]:
        """Those that are looked after."""
        return list(self._tasks)

    def add(self, key: K) -> None:
        """Something may have changed for `key`."""
        if self._is_closed:
            return
        self._wanted.setdefault(key, asyncio.Event()).set()
        self._since_s.setdefault(key, self._clock())
        if key not in self._tasks:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._serve(key))

    def close(self) -> None:
        """Ends everything, for good."""
        self._is_closed = True
        for task in self._tasks.values():
            task.cancel()

    async def _serve(self, key: K) -> None:
        wanted, back_off_s = self._wanted[key], FIRST_BACK_OFF_S
        try:
            while True:
                wanted.clear()
                self._since_s.setdefault(key, self._clock())
                try:
                    again_s = await self._look(key)
                    back_off_s = FIRST_BACK_OFF_S
                except Exception as error:  # told whole; one key's fault must not end the others'
                    self._failed(key, error)
                    again_s, back_off_s = back_off_s, min(2 * back_off_s, MOST_BACK_OFF_S)
                del self._since_s[key]
                if wanted.is_set():
                    self._since_s[key] = self._clock()
                elif again_s is None:
                    return
                try:
                    async with asyncio.timeout(again_s or 0.0):
                        await wanted.wait()
                except TimeoutError:
                    pass
        finally:
            self._since_s.pop(key, None)
            del self._tasks[key], self._wanted[key]
