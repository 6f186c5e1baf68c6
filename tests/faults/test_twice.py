"""More than one fault at once, and a worker started as a user's is: how long it takes until answers go on."""

from __future__ import annotations

import asyncio
import time

import pytest

from faults.relay import Gate
from faults.rig import LENGTHS, TOTAL, WAA, Load, Rig

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]


@pytest.mark.parametrize("in_transfer", [False, True], ids=["under load", "in a transfer"])
async def test_encoder_and_decoder_killed_together(
    rig: Rig, undisturbed: list[list[int]], in_transfer: bool
) -> None:
    workers = rig.up_to(2)
    gate = Gate()
    async with rig.waa() as (conductor, relay):
        if in_transfer:
            relay.harm, relay.num_harmed, relay.skip = gate.hold, 1, 2
        load = Load(conductor)
        await (gate.reached.wait() if in_transfer else load.reached(TOTAL // 3))
        for worker in workers:
            worker.kill()
        gate.opened.set()
        for worker in workers:
            worker.start()
        assert await load.finished() == undisturbed
    assert rig.metric("exegpt_worker_restarts_total") == 2


@pytest.mark.parametrize("victim", [0, 1], ids=["encoder", "decoder"])
async def test_a_worker_killed_three_times_in_a_row(
    rig: Rig, undisturbed: list[list[int]], victim: int
) -> None:
    worker = rig.up_to(2)[victim]
    async with rig.waa() as (conductor, _):
        load = Load(conductor)
        for tokens in (TOTAL // 8, TOTAL // 4, TOTAL // 2):
            await load.reached(tokens)
            worker.restart()
        assert await load.finished() == undisturbed
    assert rig.metric("exegpt_queries_total", outcome="length") == len(LENGTHS)


async def test_a_worker_killed_while_it_starts(rig: Rig, undisturbed: list[list[int]]) -> None:
    decoder = rig.up_to(2)[1]
    async with rig.waa() as (conductor, _):
        load = Load(conductor)
        await load.reached(TOTAL // 4)
        for delay_s in (0.0, 0.1, 0.2, 0.3, 0.4):  # before it listens, as it is configured, after
            decoder.restart()
            await asyncio.sleep(delay_s)
        assert await load.finished() == undisturbed


async def test_a_decoder_that_is_killed_and_loads_torch_again(
    rig: Rig, undisturbed: list[list[int]]
) -> None:
    decoder = rig.up_to(2)[1]
    links = [rig.link(worker) for worker in rig.workers[:2]]
    async with rig.conducting(links, WAA) as conductor:
        load = Load(conductor)
        await load.reached(TOTAL // 4)
        at_s = time.monotonic()
        decoder.kill()
        while conductor.ready:
            await asyncio.sleep(0.001)
        lost_s = time.monotonic()
        process = decoder.start_cold()
        while not conductor.ready:
            await asyncio.sleep(0.01)
        ready_s = time.monotonic()
        assert await load.finished() == undisturbed
    print(
        f"found lost after {1000 * (lost_s - at_s):.0f} ms, serving again {ready_s - lost_s:.1f} s "
        f"later, the last answer after {time.monotonic() - ready_s:.1f} s more"
    )
    decoder.restart()
    process.wait()
