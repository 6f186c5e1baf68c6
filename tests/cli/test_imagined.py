"""Plans for devices that are not here: what is asked for on the command line alone."""

from __future__ import annotations

import json
import re

import pytest

from cli.manifests import run_cli
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import RraSchedule

ALONE = ("--model", "opt-13b", "--device", "a40", "--gpus", "1", "--strategy", "RRA")
ASKED = ("--model", "opt-13b", "--device", "a40", "--gpus", "4", "--strategy", "RRA")


def planned(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> Plan:
    assert run_cli(monkeypatch, "plan", *ASKED, *arguments, "-o", "json") == 0
    return Plan.model_validate_json(capsys.readouterr().out)


def test_a_plan_says_its_layout_and_that_it_is_analytic(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(capsys, monkeypatch, "--task", "S", "--bound", "5.9")
    assert isinstance(plan.schedule, RraSchedule)
    assert plan.schedule.layout is not None
    assert plan.schedule.units * plan.schedule.layout.devices == 4
    assert sum(stage.layers for stage in plan.schedule.layout.stages) == 40
    assert plan.source == "analytic"
    assert plan.prediction.promised_s <= 5.9
    assert plan.length_tokens == 63
    searched = {space.shape for space in plan.certificate.spaces}
    relaxed = {each.shape for each in plan.certificate.relaxed}
    assert searched | relaxed == set(range(plan.certificate.num_shapes))
    assert not searched & relaxed
    best = plan.prediction.queries_per_s
    assert all(each.throughput <= best for each in plan.certificate.relaxed)


def test_no_bound_is_a_bound_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = planned(capsys, monkeypatch, "--task", "S", "--bound", "5.9", "--mean")
    free = planned(capsys, monkeypatch, "--task", "S", "--bound", "inf")
    assert free.prediction.queries_per_s > tight.prediction.queries_per_s
    assert json.loads(free.model_dump_json())["bound"]["seconds"] == "Infinity"
    assert free.sensitivity == ()


def test_lengths_of_ones_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = (
        "--input-lengths",
        "mean=64,std=20,max=128",
        "--output-lengths",
        "mean=20,std=5,max=40",
    )
    plan = planned(capsys, monkeypatch, *lengths, "--bound", "3", "--percentile", "95")
    assert 26 <= plan.length_tokens <= 30


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["-f FILE is missing"]),
        (("--device", "a40"), ["--model is missing", "--gpus is missing", "--bound is missing", "--task"]),
        ((*ASKED, "--task", "S", "--bound", "0"), ["--bound must be above 0 s, not 0"]),
        ((*ASKED, "--task", "S", "--bound", "nan"), ["--bound must be above 0 s"]),
        ((*ASKED, "--bound", "5", "--input-lengths", "mean=9"), ["go together"]),
        ((*ASKED, "--bound", "5", "--task", "X"), ["'X'", "C1"]),
        (("--model", "opt-13", *ASKED[2:], "--task", "S", "--bound", "5"), ["opt-13b"]),
        (("--model", "opt-13b", "--device", "a41", "--gpus", "4", "--task", "S", "--bound", "5"), ["a40"]),
        ((*ASKED, "-f", "x.yaml", "--task", "S", "--bound", "5"), ["-f plans for this machine"]),
        (
            (*ASKED, "--bound", "5", "--input-lengths", "mean=64,std=900,max=128",
             "--output-lengths", "mean=20,std=5,max=40"),
            ["std"],
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused_with_all_its_problems(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: list[str],
) -> None:
    assert run_cli(monkeypatch, "plan", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    for word in words:
        assert word in err


def test_what_no_layout_holds_says_what_it_takes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--model", "gpt3-175b", *ASKED[2:], "--task", "G", "--bound", "inf")
    assert run_cli(monkeypatch, "plan", *arguments) != 0
    assert "no layout holds both" in capsys.readouterr().err


def test_an_explanation_says_where_layers_lie(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--model", "opt-13b", "--device", "l4", "--gpus", "2", "--strategy", "RRA")
    asked = (*arguments, "--task", "S", "--bound", "inf", "--points", "3")
    assert run_cli(monkeypatch, "explain", *asked) == 0
    out = capsys.readouterr().out
    (layers,) = [line for line in out.splitlines() if line.strip().startswith("layers")]
    counted = [
        int(count) * int(times or 1)
        for count, times in re.findall(r"(\d+) on (?:each of (\d+) |a )", layers)
    ]
    assert sum(counted) == 40, layers
    assert "analytic" in out


def test_several_limits_are_kept_and_the_one_that_binds_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (*ALONE, "--task", "S", "--bound", "inf", "--gap", "0.97")
    assert run_cli(monkeypatch, "plan", *asked, "--first-token", "30", "-o", "json") == 0
    plan = json.loads(capsys.readouterr().out)
    used = {each["name"]: each["promised"] / each["limit"] for each in plan["limits"]}
    assert set(used) == {"gap", "first_token"}
    assert 0.9 < used["gap"] <= 1
    assert used["first_token"] < 0.1
    assert run_cli(monkeypatch, "explain", *asked) == 0
    assert "Of all limits, the longest gap between tokens binds" in capsys.readouterr().out


def test_limits_that_nothing_keeps_say_what_would_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = (*ALONE, "--task", "S", "--bound", "inf")
    assert run_cli(monkeypatch, "plan", *asked, "--arrivals", "500") != 0
    err = capsys.readouterr().err
    assert "arrivals 500 queries/s of" in err
    assert "queries/s to arrive" in err
