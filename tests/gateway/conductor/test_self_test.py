"""The query that a gateway asks itself before it says that it is ready."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from conductors import MakeWorker, Serve, build_conductor, collect, greedy
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.self_test import ANSWER_TOKENS, self_test
from exegpt_planner.schedule import RraSchedule

RRA = RraSchedule(encode_batch=2, encode_interval=8)


async def test_an_answer_is_no_problem_and_is_not_observed(
    make_worker: MakeWorker, serve: Serve
) -> None:
    conductor = build_conductor(await make_worker(), RRA, metrics=Metrics(CollectorRegistry()))
    serve(conductor)
    assert await self_test(conductor, token=3, within_s=30) == ""
    assert conductor.metrics.lengths.outputs == {}
    await collect(conductor.submit([1], greedy(2)))
    assert conductor.metrics.lengths.outputs == {2: 1}


async def test_a_worker_that_hangs_is_named_by_what_was_not_answered(
    make_worker: MakeWorker, serve: Serve
) -> None:
    worker = await make_worker()
    conductor = build_conductor(worker, RRA)
    await worker.hold_after(1)
    serve(conductor)
    assert "not answered within 0.2 s" in await self_test(conductor, token=3, within_s=0.2)
    await worker.release()
    assert await self_test(conductor, token=3, within_s=30) == ""
    assert ANSWER_TOKENS > 1


async def test_a_gateway_that_drains_is_a_problem(make_worker: MakeWorker) -> None:
    conductor = build_conductor(await make_worker(), RRA)
    conductor.drain()
    assert "draining" in await self_test(conductor, token=3, within_s=1)
