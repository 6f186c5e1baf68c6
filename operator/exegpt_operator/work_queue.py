"""A level-triggered queue: a key is looked at once however often it was named, never twice at a time, and again later.

Errors back off a key alone; nothing is remembered that looking again would not show.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)
FIRST_BACK_OFF_S = 0.5
MOST_BACK_OFF_S = 60.0


class Queue(Generic[K]):
    """Keys, each with a task of its own while there is something to do for it."""

    def __init__(self, look: Callable[[K], Awaitable[float | None]]) -> None:
        """`look` works on a key and returns the seconds until it is to be looked at again; None: it is gone."""
        self._look = look
        self._wanted: dict[K, asyncio.Event] = {}
        self._tasks: dict[K, asyncio.Task[None]] = {}
        self.num_looks = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def watched(self) -> list[K]:
        """Those that are looked after."""
        return list(self._tasks)

    def add(self, key: K) -> None:
        """Something may have changed for `key`."""
        self._wanted.setdefault(key, asyncio.Event()).set()
        if key not in self._tasks:
            self._tasks[key] = asyncio.get_running_loop().create_task(self._serve(key))

    def close(self) -> None:
        """Ends everything."""
        for task in self._tasks.values():
            task.cancel()

    async def _serve(self, key: K) -> None:
        wanted, back_off_s = self._wanted[key], FIRST_BACK_OFF_S
        try:
            while True:
                wanted.clear()
                self.num_looks += 1
                try:
                    again_s = await self._look(key)
                    back_off_s = FIRST_BACK_OFF_S
                except Exception:  # said whole, and one key's fault must not end the others'
                    log.exception("cannot look at %s", key)
                    again_s, back_off_s = back_off_s, min(2 * back_off_s, MOST_BACK_OFF_S)
                if again_s is None and not wanted.is_set():
                    return
                try:
                    async with asyncio.timeout(again_s or 0.0):
                        await wanted.wait()
                except TimeoutError:
                    pass
        finally:
            del self._tasks[key], self._wanted[key]
