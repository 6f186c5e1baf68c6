"""A worker is killed at a random point of a run under load and started again: every answer is the undisturbed one."""

from __future__ import annotations

import asyncio
import random

import pytest

from faults.relay import Gate
from faults.rig import LENGTHS, TOTAL, TWO_AND_ONE, WAA, Load, Rig

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

DOWN_S = (0.0, 0.3)  # a supervisor's next start comes at once, or after its back-off


@pytest.mark.parametrize("seed", range(20))
async def test_no_query_is_lost_and_no_token_wrong(
    rig: Rig, undisturbed: list[list[int]], seed: int
) -> None:
    rng = random.Random(seed)
    schedule = TWO_AND_ONE if seed % 4 == 3 else WAA
    in_transfer = seed % 2 == 1
    victim = rng.choice(rig.up_to(schedule.encoders + schedule.decoders))
    gate = Gate()
    async with rig.waa(schedule) as (conductor, relay):
        if in_transfer:
            relay.harm, relay.num_harmed, relay.skip = gate.hold, 1, rng.randrange(4)
        load = Load(conductor)
        if in_transfer:
            await gate.reached.wait()
        else:
            await load.reached(rng.randrange(1, TOTAL - max(LENGTHS)))
        at = load.num_seen
        victim.kill()
        gate.opened.set()
        await asyncio.sleep(rng.choice(DOWN_S))
        victim.start()
        answers = await load.finished()
    print(f"seed {seed}: {victim.socket.stem} killed after {at} of {TOTAL} tokens", end="")
    print(" in a transfer" if in_transfer else "")
    assert answers == undisturbed
    assert at < TOTAL
    assert rig.metric("exegpt_worker_restarts_total") == 1
    assert rig.metric("exegpt_queries_total", outcome="length") == len(LENGTHS)
