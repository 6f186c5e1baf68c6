"""Metrics: documented one by one, and gone with what they are about."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from exegpt_operator.api import Api, ApiRefused, ApiSilent
from exegpt_operator.metrics import OperatorMetrics
from exegpt_operator.planning import Answer, plan_id
from exegpt_operator.watching import FEWEST_ANSWERS
from operator_api import deployment_path, serving
from operator_bench import PLAN_JSON, Bench

DOCS = Path(__file__).parents[2] / "docs" / "operator.md"
ROW = re.compile(r"^\| `(exegpt_operator_\w+)` \| (\w+) \|(.*?)\| (.+) \|$", re.MULTILINE)
OF = {"namespace": "nlp", "name": "translate"}


def value(bench: Bench, metric: str, /, **labels: str) -> float | None:
    return bench.metrics.registry.get_sample_value(f"exegpt_operator_{metric}", labels)


async def lived(bench: Bench) -> None:
    """A deployment that serves, once steered and once refused."""
    bench.deploy()
    await bench.look(3)
    bench.start_pods()
    bench.gateway.answers = bench.gateway.kept = FEWEST_ANSWERS
    await bench.look(3)
    assert bench.condition("Ready") == ("True", "Serving")
    assert bench.gateway.steers == [plan_id(PLAN_JSON)]


async def test_the_docs_name_every_metric_with_its_type_and_labels(bench: Bench) -> None:
    await lived(bench)
    bench.metrics.look_ended("deployment", 0.1)
    bench.metrics.look_failed("deployment")
    exposed: dict[str, tuple[str, frozenset[str]]] = {}
    for family in bench.metrics.registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels} - {"le"}
        exposed[name] = (family.type, frozenset(labels))
    text = DOCS.read_text(encoding="utf-8")
    told = {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)))
        for name, kind, labels, _ in ROW.findall(text)
    }
    assert told == exposed


async def test_what_a_deployment_is_and_does_is_counted(bench: Bench) -> None:
    await lived(bench)
    assert value(bench, "deployments", reason="Serving") == 1
    assert value(bench, "bound_seconds", **OF) == 5.0
    predicted_s = value(bench, "predicted_seconds", **OF)
    assert predicted_s is not None
    assert 0 < predicted_s < 5.0
    assert value(bench, "drift", **OF) is not None
    assert value(bench, "decisions_total", **OF) == 6
    assert value(bench, "plans_total", outcome="Planned") == 1
    assert value(bench, "planning_seconds_count") == value(bench, "steer_seconds_count") == 1
    assert value(bench, "actions_total", kind="StartPlanning") == 1
    assert value(bench, "actions_total", kind="Steer") == 1
    calls = {"verb": "apply", "kind": "StatefulSet", "code": "200"}
    assert value(bench, "api_calls_total", **calls) == 2
    bench.answer = Answer(inputs="", reason="Infeasible", message="No.")
    bench.deploy(latencyBound={"seconds": 0.1})
    await bench.look(2)
    assert value(bench, "plans_total", outcome="Infeasible") == 1
    assert value(bench, "bound_seconds", **OF) == 0.1


async def test_series_end_with_the_deployment(bench: Bench) -> None:
    await lived(bench)
    bench.api.remove(deployment_path())
    assert await bench.look() is None
    for family in bench.metrics.registry.collect():
        for sample in family.samples:
            assert "namespace" not in sample.labels
            assert "reason" not in sample.labels


async def test_series_end_with_the_lease(bench: Bench) -> None:
    await lived(bench)
    bench.metrics.forget_all()
    assert value(bench, "decisions_total", **OF) is None
    assert value(bench, "deployments", reason="Serving") is None


def counted(metrics: OperatorMetrics, **labels: str) -> float | None:
    return metrics.registry.get_sample_value("exegpt_operator_api_calls_total", labels)


def test_an_api_server_that_refuses_or_is_silent_is_counted_too() -> None:
    metrics = OperatorMetrics(CollectorRegistry())
    with serving() as server:
        api = Api(server.client(), called=metrics.called)
        server.refuses["GET", "pods"] = (403, "pods is forbidden")
        with pytest.raises(ApiRefused, match="pods is forbidden"):
            api.list("Pod", "nlp")
    with pytest.raises(ApiSilent, match="does not answer"):
        api.get("Pod", "nlp", "a")
    assert counted(metrics, verb="list", kind="Pod", code="403") == 1
    assert counted(metrics, verb="get", kind="Pod", code="none") == 1
