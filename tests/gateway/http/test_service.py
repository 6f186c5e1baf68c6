from __future__ import annotations

import pytest

from gateway.http.front_door import Door

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_the_served_model_is_listed_and_described(door: Door) -> None:
    models = await door.openai.models.list()
    assert [(model.id, model.object) for model in models.data] == [("tiny", "model")]
    assert (await door.openai.models.retrieve("tiny")).id == "tiny"


async def test_it_is_alive_whether_ready_or_not(door: Door) -> None:
    door.conductor.ready = False
    assert (await door.http.get("/healthz")).status_code == 200


async def test_readiness_tells_why_not(door: Door) -> None:
    assert (await door.http.get("/readyz")).text == "ready\n"
    door.conductor.ready = False
    answer = await door.http.get("/readyz")
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert answer.json()["error"]["message"] == "not ready: the worker is not connected yet"
    door.conductor.ready, door.conductor.is_draining = True, True
    answer = await door.http.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "not ready: draining"


async def test_metrics_are_prometheus_text_of_the_conductors_registry(door: Door) -> None:
    answer = await door.http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert "exegpt_waiting_queries 0.0" in answer.text
