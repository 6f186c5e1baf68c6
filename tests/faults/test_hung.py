"""Stopped workers (SIGSTOP): found by their pings, replaced, nothing lost; slow ones and busy ones are left alone.

A stopped worker answers no ping, so its connection is given up after PING_EVERY_S + PING_ANSWER_S; then it does not
describe itself within DESCRIBE_S, and is reported as hung.
"""

from __future__ import annotations

import asyncio
import math
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from conductors import collect, greedy
from exegpt_gateway.worker_link import DESCRIBE_S, PING_ANSWER_S, PING_EVERY_S
from exegpt_planner.schedule import OrcaSchedule, RraSchedule
from faults.relay import Gate, slowed
from faults.rig import LENGTHS, TOTAL, Load, Rig
from faults.workers import Nursery, Worker

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

SILENCE_S = PING_EVERY_S + PING_ANSWER_S
DETECTION_S = SILENCE_S + DESCRIBE_S
SLACK_S = 2.0  # a busy machine's timers


@pytest.mark.parametrize("victim", ["encoder", "decoder"])
@pytest.mark.parametrize("in_transfer", [False, True], ids=["under load", "in a transfer"])
async def test_a_stopped_worker_is_found_and_replaced(
    rig: Rig, undisturbed: list[list[int]], victim: str, in_transfer: bool
) -> None:
    encoder, decoder = rig.up_to(2)
    stopped = encoder if victim == "encoder" else decoder
    found_s: list[float] = []

    def replace(worker: Worker) -> None:
        assert worker is stopped
        found_s.append(time.monotonic())
        worker.restart()

    rig.on_hung = replace
    gate = Gate()
    async with rig.waa() as (conductor, relay):
        if in_transfer:
            relay.harm, relay.num_harmed, relay.skip = gate.hold, 1, 1
        load = Load(conductor)
        await (gate.reached.wait() if in_transfer else load.reached(TOTAL // 4))
        seen = load.num_seen
        stopped.signal(signal.SIGSTOP)
        began_s = time.monotonic()
        gate.opened.set()
        answers = await load.finished()
        all_s = time.monotonic() - began_s
    assert answers == undisturbed
    assert rig.metric("exegpt_worker_restarts_total") == 1
    (found_at_s,) = found_s
    detection_s = found_at_s - began_s
    where = "in a transfer" if in_transfer else "under load"
    print(
        f"{victim} stopped {where} after {seen} of {TOTAL} tokens: found after {detection_s:.1f} s, "
        f"all answers {all_s - detection_s:.1f} s later"
    )
    assert DESCRIBE_S < detection_s < DETECTION_S + SLACK_S


@pytest.mark.parametrize("victim", ["encoder", "decoder"])
async def test_a_pause_of_a_second_loses_nothing_and_replaces_nobody(
    rig: Rig, undisturbed: list[list[int]], victim: str
) -> None:
    encoder, decoder = rig.up_to(2)
    paused = encoder if victim == "encoder" else decoder
    starts = paused.starts
    async with rig.waa() as (conductor, _):
        load = Load(conductor)
        await load.reached(TOTAL // 4)
        paused.signal(signal.SIGSTOP)
        await asyncio.sleep(1)
        paused.signal(signal.SIGCONT)
        answers = await load.finished()
    assert answers == undisturbed
    assert paused.starts == starts
    assert rig.metric("exegpt_worker_restarts_total") == 0


@asynccontextmanager
async def hampered(worker: Worker, *, stopped_s: float, running_s: float) -> AsyncIterator[None]:
    """`worker` runs a part of the time only."""

    async def cycle() -> None:
        while True:
            worker.signal(signal.SIGSTOP)
            await asyncio.sleep(stopped_s)
            worker.signal(signal.SIGCONT)
            await asyncio.sleep(running_s)

    cycling = asyncio.ensure_future(cycle())
    try:
        yield
    finally:
        cycling.cancel()
        worker.signal(signal.SIGCONT)


async def test_slow_workers_are_just_slower(rig: Rig, undisturbed: list[list[int]]) -> None:
    encoder, decoder = rig.up_to(2)
    async with (
        rig.waa() as (conductor, _),
        hampered(encoder, stopped_s=0.2, running_s=0.05),
        hampered(decoder, stopped_s=0.15, running_s=0.05),
    ):
        assert await Load(conductor).finished() == undisturbed
    assert rig.metric("exegpt_worker_restarts_total") == 0


async def test_a_slow_way_is_just_slower(rig: Rig, undisturbed: list[list[int]]) -> None:
    async with rig.waa() as (conductor, relay):
        relay.harm, relay.num_harmed = slowed(bytes_per_s=400_000), len(LENGTHS)
        assert await Load(conductor).finished() == undisturbed
    assert rig.metric("exegpt_worker_restarts_total") == 0
    assert rig.metric("exegpt_kv_transfer_bytes_total") > 100_000
    assert rig.metric("exegpt_kv_transfer_seconds_sum") > 0.25
    print(f"{rig.metric('exegpt_kv_transfer_seconds_sum'):.2f} s in transfers")


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose encode of a long prompt takes long, and whose weights take a moment to read."""
    from tiny_models import write_model  # loads torch

    return write_model(
        tmp_path_factory.mktemp("large"),
        hidden_size=768,
        intermediate_size=2048,
        num_hidden_layers=6,
        max_position_embeddings=4096,
    )


async def test_a_step_and_a_load_longer_than_the_patience_for_pings_are_no_fault(
    nursery: Nursery, large_model: Path, tmp_path: Path
) -> None:
    rig = Rig(nursery, large_model, tmp_path)
    (worker,) = rig.up_to(1)
    kv_tokens = 64 * 4096
    configure = rig.configure(kv_tokens=kv_tokens)
    links = [rig.link(worker, configure=configure)]
    began_s = time.monotonic()
    try:
        async with (
            hampered(worker, stopped_s=0.5, running_s=0.02),
            rig.conducting(links, OrcaSchedule(pool=1), kv_tokens=kv_tokens),
        ):
            load_s = time.monotonic() - began_s
        links = [rig.link(worker, configure=configure)]
        schedule = RraSchedule(encode_batch=32, encode_interval=1)
        async with rig.conducting(links, schedule, kv_tokens=kv_tokens) as conductor:
            rng = random.Random(0)
            prompts = [[rng.randrange(3, 97) for _ in range(500)] for _ in range(33)]
            began_s = time.monotonic()
            await collect(conductor.submit(prompts[0], greedy(1)))
            one_s = time.monotonic() - began_s
            number = min(32, math.ceil(1.4 * SILENCE_S / one_s))
            began_s = time.monotonic()
            streams = [conductor.submit(prompt, greedy(1)) for prompt in prompts[1 : 1 + number]]
            await asyncio.gather(*(collect(stream) for stream in streams))
            step_s = time.monotonic() - began_s
    finally:
        worker.kill()
    print(f"a load of {load_s:.1f} s, a step of {step_s:.1f} s ({number} prompts)")
    assert load_s > SILENCE_S
    assert step_s > SILENCE_S
    assert worker.starts == 1
    assert rig.metric("exegpt_worker_restarts_total") == 0
