"""The queue: each key once, errors back off alone, and how long anything has waited can be asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from exegpt_operator.work_queue import FIRST_BACK_OFF_S, Queue


def untold(key: str, error: Exception) -> None:
    raise AssertionError(f"{key}: {error}")


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0)


async def test_a_key_is_looked_at_once_however_often_it_is_named() -> None:
    looks: list[str] = []
    free = asyncio.Event()

    async def look(key: str) -> float | None:
        looks.append(key)
        await free.wait()
        return None

    queue = Queue(look, untold)
    for _ in range(5):
        queue.add("a")
    queue.add("b")
    await until(lambda: len(looks) == 2)
    queue.add("a")  # while it is looked at: once more
    free.set()
    await until(lambda: not len(queue))
    assert sorted(looks) == ["a", "a", "b"]


async def test_an_error_backs_off_that_key_alone_and_ends_nothing() -> None:
    looks: list[str] = []
    told: list[tuple[str, str]] = []

    async def look(key: str) -> float | None:
        looks.append(key)
        if key == "bad" and looks.count("bad") < 3:
            raise RuntimeError("no")
        return None

    queue = Queue(look, lambda key, error: told.append((key, str(error))))
    queue.add("bad")
    queue.add("good")
    await until(lambda: "good" in looks)
    assert queue.watched() == ["bad"]
    queue.add("bad")  # news end the wait
    await until(lambda: looks.count("bad") == 2)
    async with asyncio.timeout(20 * FIRST_BACK_OFF_S):  # and without news it is tried again
        while len(queue):
            await asyncio.sleep(0.01)
    assert looks.count("bad") == 3
    assert told == [("bad", "no")] * 2


async def test_the_age_is_of_the_oldest_key_that_waits_or_is_looked_at() -> None:
    now_s = 0.0
    free = asyncio.Event()

    async def look(key: str) -> float | None:
        if key == "stuck":
            await free.wait()
        return 1000.0

    queue = Queue(look, untold, clock=lambda: now_s)
    assert (queue.depth, queue.age_s()) == (0, 0.0)
    queue.add("quick")
    queue.add("stuck")
    await until(lambda: queue.depth == 1)
    now_s = 40.0
    queue.add("stuck")
    queue.add("quick")
    assert (queue.depth, queue.age_s()) == (2, 40.0)
    await until(lambda: queue.depth == 1)
    free.set()
    await until(lambda: queue.depth == 0)
    assert queue.age_s() == 0.0
    queue.close()


async def test_nothing_begins_after_the_end() -> None:
    looks: list[str] = []

    async def look(key: str) -> float | None:
        looks.append(key)
        return 1000.0

    queue = Queue(look, untold)
    queue.add("a")
    await until(lambda: queue.depth == 0)
    queue.close()
    queue.add("a")
    queue.add("b")
    await until(lambda: not len(queue))
    assert looks == ["a"]
