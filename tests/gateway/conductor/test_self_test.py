"""The query that a gateway asks itself before it says that it is ready."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry

from conductors import MakeWorker, Serve, build_conductor, collect, greedy
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.self_test import SelfTest
from exegpt_planner.schedule import RraSchedule

RRA = RraSchedule(encode_batch=2, encode_interval=8)


async def test_an_answer_ends_it_and_is_not_observed(make_worker: MakeWorker, serve: Serve) -> None:
    conductor = build_conductor(await make_worker(), RRA, metrics=Metrics(CollectorRegistry()))
    serve(conductor)
    test = SelfTest(conductor, token=3, within_s=30)
    await test.run()
    assert (test.has_passed, test.problem) == (True, "")
    assert conductor.metrics.lengths.outputs == {}
    await collect(conductor.submit([1], greedy(2)))
    assert conductor.metrics.lengths.outputs == {2: 1}


async def test_a_query_that_hangs_is_asked_again_until_it_is_answered(
    make_worker: MakeWorker, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SelfTest, "AGAIN_S", 0.01)
    worker = await make_worker()
    conductor = build_conductor(worker, RRA)
    await worker.hold_after(1)
    serve(conductor)
    test = SelfTest(conductor, token=3, within_s=0.2)
    running = asyncio.create_task(test.run())
    async with asyncio.timeout(20):
        while not test.problem:
            await asyncio.sleep(0.01)
    assert "not answered within 0.2 s" in test.problem
    assert not test.has_passed
    test.within_s = 30
    await worker.release()
    await asyncio.wait_for(running, 20)
    assert (test.has_passed, test.problem) == (True, "")
