"""The decision log: one line a decision, one when its promise can be measured, and ids that outlive the process."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from exegpt_operator import logs
from exegpt_operator.decision_log import change_of
from exegpt_operator.planning import Answer, plan_id
from exegpt_operator.watching import FEWEST_ANSWERS
from exegpt_planner.drift_moves import Kind
from exegpt_planner.schedule import (
    Adjustment,
    CraSchedule,
    RraSchedule,
    Schedule,
    WaaSchedule,
)
from operator_bench import PLAN_JSON, Bench

DOCS = Path(__file__).parents[2] / "docs" / "operator.md"
RRA = RraSchedule(encode_batch=4, encode_interval=8)
WAA = WaaSchedule(encoders=1, decoders=3, encode_batch=4, pool=8)
CRA = CraSchedule(pool=8, chunk_tokens=64)
T = Adjustment(encode_tokens=80.0, most_tokens=1.5, most_queries=9)


@pytest.mark.parametrize(
    ("before", "now", "change"),
    [
        (None, RRA, "pods"),
        (RRA, RRA, "keep"),
        (RRA, RraSchedule(encode_batch=4, encode_interval=9), "knobs"),
        (RRA, RraSchedule(encode_batch=5, encode_interval=8), "knobs"),
        (RRA, RraSchedule(encode_batch=4, encode_interval=8, adjustment=T), "knobs"),
        (RRA, RraSchedule(encode_batch=4, encode_interval=8, units=2), "layout"),
        (CRA, CraSchedule(pool=9, chunk_tokens=128), "knobs"),
        (WAA, WaaSchedule(encoders=1, decoders=3, encode_batch=5, pool=9), "knobs"),
        (WAA, WaaSchedule(encoders=2, decoders=2, encode_batch=4, pool=8), "layout"),
        (WAA, RRA, "layout"),
        (CRA, RRA, "layout"),
    ],
)
def test_what_a_new_schedule_needs(before: Schedule | None, now: Schedule, change: Kind) -> None:
    assert change_of(before, now, keeps_pods=True) == change
    assert change_of(before, now, keeps_pods=False) == "pods"


def decisions(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Its lines as they are written."""
    return [
        json.loads(logs.Formatter().format(record))
        for record in caplog.records
        if record.name == "exegpt_operator.decisions"
    ]


def replanned(bench: Bench, **changes: Any) -> str:
    """Has the next plan be another one; its id."""
    plan = json.loads(PLAN_JSON)
    plan["schedule"] |= changes
    bench.answer = Answer(inputs="", plan=json.dumps(plan))
    return plan_id(bench.answer.plan)


async def served(bench: Bench) -> None:
    bench.deploy()
    await bench.look(3)
    bench.start_pods()
    bench.gateway.plan_id = plan_id(PLAN_JSON)
    await bench.look(2)
    assert bench.condition("Ready") == ("True", "Serving")


async def test_the_lines_of_a_life(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    await served(bench)
    (first,) = decisions(caplog)
    found = plan_id(PLAN_JSON)
    prediction = json.loads(PLAN_JSON)["prediction"]
    expected = {
        "seconds": round(prediction["promised_s"], 3),
        "queriesPerSecond": round(prediction["queries_per_s"], 3),
    }
    assert (first["msg"], first["decision"], first["answer"]) == ("decision", f"1-{found}", found)
    assert (first["change"], first["why"], first["expected"]) == ("pods", "first plan", expected)
    assert first["inputs"] == bench.questions[0].inputs
    caplog.clear()

    bench.gateway.answers, bench.gateway.kept = FEWEST_ANSWERS, FEWEST_ANSWERS - 1
    await bench.look(3)
    (measured,) = decisions(caplog)
    assert (measured["decision"], measured["expected"]) == (first["decision"], expected)
    assert measured["planId"] == found
    assert measured["measured"] == {
        "boundSeconds": json.loads(PLAN_JSON)["bound"]["seconds"],
        "answers": FEWEST_ANSWERS,
        "kept": FEWEST_ANSWERS - 1,
        "share": (FEWEST_ANSWERS - 1) / FEWEST_ANSWERS,
        "isMet": True,
    }
    caplog.clear()

    other = replanned(bench, encode_batch=3)
    bench.gateway.answers = 0
    bench.deploy(latencyBound={"seconds": 7.0})
    await bench.look(3)
    (second,) = decisions(caplog)
    assert (second["decision"], second["change"]) == (f"2-{other}", "knobs")
    assert bench.gateway.steers == [other]


async def test_a_refusal_has_its_reason_and_its_inputs(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    bench.deploy()
    bench.answer = Answer(inputs="", reason="Infeasible", message="Nothing keeps 0.1 s.")
    await bench.look(3)
    (line,) = decisions(caplog)
    inputs = bench.questions[0].inputs
    assert (line["decision"], line["answer"]) == (f"refused-{inputs}", "Infeasible")
    assert (line["change"], line["problem"]) == ("keep", "Nothing keeps 0.1 s.")
    assert len(bench.questions) == 1


async def test_the_examples_in_the_docs_are_lines_of_the_code(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await served(bench)
    bench.gateway.answers, bench.gateway.kept = FEWEST_ANSWERS, FEWEST_ANSWERS - 1
    await bench.look()
    bench.answer = Answer(inputs="", reason="Infeasible", message="No schedule keeps 0.1 s.")
    bench.deploy(latencyBound={"seconds": 0.1})
    await bench.look()
    text = DOCS.read_text(encoding="utf-8")
    shown = [json.loads(line) for line in re.findall(r'^\{"ts".*\}$', text, re.MULTILINE)]
    made = decisions(caplog)
    assert len(shown) == len(made) == 3
    for example, line in zip(shown, made, strict=True):
        for each in (example, line):
            each.pop("ts")
            each.pop("uid")
            each.pop("generation")
        assert example == line, json.dumps(line)
    cells = "".join(re.findall(r"^\|(.*?)\|", text, re.MULTILINE))
    assert {key for line in made for key in line} <= set(re.findall(r"`(\w+)`", cells))


async def test_a_line_after_a_restart_has_the_id_of_the_one_before(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing of it is remembered: another loop, on what lies in the cluster, writes the measured line."""
    caplog.set_level(logging.INFO)
    await served(bench)
    (first,) = decisions(caplog)
    caplog.clear()
    bench.restart()
    bench.gateway.answers = bench.gateway.kept = FEWEST_ANSWERS
    await bench.look()
    (measured,) = decisions(caplog)
    assert measured["decision"] == first["decision"]
