"""The loop against an API server: what fails is said, retried, and stands in nothing else's way."""

from __future__ import annotations

import asyncio
import threading

import pytest

from exegpt_operator import look
from exegpt_operator.api import ApiRefused
from exegpt_operator.look import Looked, Looker
from exegpt_operator.planning import Answer, Question, plan_id
from exegpt_operator.times import rfc3339, seconds_of
from operator_api import deployment_path
from operator_bench import KEY, PLAN_JSON, Bench

FAILED = Answer(
    inputs="", reason="PlanFailed", message="The planner's process failed: it was killed."
)


async def test_a_failed_search_is_said_and_made_again_after_a_while_or_for_other_inputs(
    bench: Bench,
) -> None:
    bench.answer = FAILED
    bench.deploy()
    await bench.look(4)
    assert bench.condition("Scheduled") == ("False", "PlanFailed")
    assert bench.condition("Stalled") == ("True", "PlanFailed")
    assert len(bench.questions) == 1
    refusal = bench.status["refusal"]
    assert "it was killed" in refusal["message"]

    refusal["time"] = rfc3339(seconds_of(refusal["time"]) - look.PLAN_RETRY_S)
    await bench.look(3)
    assert len(bench.questions) == 2
    assert seconds_of(bench.status["refusal"]["time"]) > seconds_of(refusal["time"])

    bench.answer = Answer(inputs="", plan=PLAN_JSON)
    bench.deploy(latencyBound={"seconds": 9.0})
    await bench.look(2)
    assert len(bench.questions) == 3
    assert bench.status["plan"]["id"] == plan_id(PLAN_JSON)
    assert "refusal" not in bench.status or bench.status["refusal"]["inputs"] == refusal["inputs"]


async def test_a_plain_no_is_not_asked_for_again(bench: Bench) -> None:
    bench.answer = Answer(inputs="", reason="Infeasible", message="Nothing keeps it.")
    bench.deploy()
    await bench.look(3)
    bench.status["refusal"]["time"] = rfc3339(0)
    await bench.look(3)
    assert len(bench.questions) == 1


async def test_a_refusal_outlives_a_status_that_cannot_be_written(bench: Bench) -> None:
    bench.answer = Answer(inputs="", reason="Infeasible", message="Nothing keeps it.")
    bench.deploy()
    await bench.look()
    bench.api.refuses["PATCH", "exegptdeployments"] = (500, "etcd is away")
    with pytest.raises(ApiRefused, match="etcd is away"):
        await bench.look()
    bench.api.refuses.clear()
    await bench.look(2)
    assert bench.condition("Ready") == ("False", "Infeasible")
    assert len(bench.questions) == 1


async def test_a_lost_event_stops_nothing(bench: Bench) -> None:
    bench.api.refuses["POST", "events"] = (403, "no more events")
    bench.deploy()
    await bench.look(3)
    assert "nlp/statefulsets/translate-workers" in bench.api.objects
    assert bench.condition("WorkersReady")[1] != "Forbidden"


async def test_who_lost_the_lease_writes_nothing(bench: Bench) -> None:
    bench.deploy()
    await bench.look()
    before = [call for call in bench.api.calls if call[0] != "GET"]
    bench.loop.may_act = lambda: False
    await bench.look(3)
    assert [call for call in bench.api.calls if call[0] != "GET"] == before


async def test_a_plan_that_comes_after_the_lease_was_lost_is_not_kept(bench: Bench) -> None:
    bench.deploy()

    async def late(question: Question) -> Answer:
        bench.loop.may_act = lambda: False
        return Answer(inputs=question.inputs, plan=PLAN_JSON)

    bench.plan = late
    await bench.look()
    assert not [path for path in bench.api.objects if "-plan-" in path]


async def test_a_look_begun_before_a_plan_was_on_file_asks_for_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering, answered = asyncio.Event(), threading.Event()
    events = asyncio.get_running_loop()

    async def gated(question: Question) -> Answer:
        bench.questions.append(question)
        await answering.wait()
        return Answer(inputs=question.inputs, plan=PLAN_JSON)

    looks = Looker.deployment

    def outrun(looker: Looker, namespace: str, name: str) -> Looked | None:
        found = looks(looker, namespace, name)
        if bench.loop.is_planning:  # the plan comes on file while this look is on its way back
            bench.loop.named = lambda _: answered.set()
            events.call_soon_threadsafe(answering.set)
            assert answered.wait(10)
        return found

    monkeypatch.setattr(Looker, "deployment", outrun)
    bench.deploy()
    bench.plan = gated
    await bench.loop.look(KEY)
    await bench.loop.look(KEY)
    assert not bench.loop.is_planning
    await bench.look(3)
    assert len(bench.questions) == 1
    assert [path for path in bench.api.objects if "-plan-" in path] == [
        "nlp/configmaps/translate-plan-1"
    ]


async def test_what_is_gone_ends_its_search(bench: Bench) -> None:
    ended: list[str] = []

    async def endless(question: Question) -> Answer:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(question.inputs)
        raise AssertionError

    bench.deploy()
    bench.plan = endless
    await bench.loop.look(KEY)
    assert bench.loop.is_planning
    await asyncio.sleep(0)
    bench.api.remove(deployment_path())
    assert await bench.loop.look(KEY) is None
    async with asyncio.timeout(10):
        while bench.loop.is_planning:
            await asyncio.sleep(0)
    assert len(ended) == 1


async def test_a_plan_on_file_that_cannot_be_read_is_followed_by_one_that_can(
    bench: Bench,
) -> None:
    bench.answer = Answer(inputs="", plan=PLAN_JSON)
    bench.deploy()
    await bench.look(3)
    (path,) = (where for where in bench.api.objects if where.endswith("-plan-1"))
    bench.api.objects[path]["data"]["plan.json"] = '{"version": "exegpt.plan/v0"}'
    await bench.look(3)
    assert bench.status["plan"]["revision"] == 2
    assert path.replace("-plan-1", "-plan-2") in bench.api.objects
