"""`exegpt simulate`: the plan's figures beside the simulation's, and the timeline it writes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from cli.manifests import run_cli, write_manifest
from cli.small_model import write_small_model
from cli.tables import store_table
from exegpt_cli.cache import Cache


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment on two workers whose profile is on file."""
    model = tmp_path / "model"
    write_small_model(model)
    for num_workers in (1, 2):
        store_table(Cache(tmp_path / "cache"), model, "float32", num_workers)
    monkeypatch.setenv("EXEGPT_CACHE", str(tmp_path / "cache"))
    return write_manifest(
        tmp_path,
        model,
        model__dtype="float32",
        cluster__gpus=2,
        latencyBound__seconds=0.15,
        scheduling__strategies=["RRA", "CRA", "WAA"],
    )


@pytest.mark.parametrize("strategy", ["RRA", "CRA", "WAA"])
def test_what_was_predicted_is_what_is_simulated(
    manifest: Path,
    strategy: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["simulate", "-f", str(manifest), "--strategy", strategy, "-o", "json"]
    assert run_cli(monkeypatch, *arguments, "--queries", "4000") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["schedule"]["strategy"] == strategy
    assert said["answers_of_length"] > 0
    predicted, simulated = said["predicted"], said["simulated"]
    assert simulated["queries_per_s"] == pytest.approx(predicted["queries_per_s"], rel=0.03)
    pool = 0.04 if strategy == "WAA" else 0.03  # of two workers, places bind: docs/theory.md
    assert simulated["pool_mean"] == pytest.approx(predicted["pool_mean"], rel=pool)
    assert simulated["latency_mean_s"] == pytest.approx(predicted["latency_mean_s"], rel=0.05)


def test_the_timeline_is_a_drawing_or_a_trace_as_its_name_says(
    manifest: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawing, trace = tmp_path / "t.svg", tmp_path / "t.json"
    for path in (drawing, trace):
        arguments = ["simulate", "-f", str(manifest), "--queries", "300", "--strategy", "RRA"]
        assert run_cli(monkeypatch, *arguments, "--timeline", str(path)) == 0
    shown = capsys.readouterr()
    assert "predicted" in shown.out
    assert "99th percentile of an answer of" in shown.out
    assert f"The timeline is in {drawing}" in shown.err
    assert ET.parse(drawing).getroot().tag.endswith("svg")
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_timeline_of_another_kind_is_refused_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["simulate", "-f", "/no/such.yaml", "--timeline", str(tmp_path / "t.png")]
    assert run_cli(monkeypatch, *arguments) == 2
    assert "must end in .svg or .json" in capsys.readouterr().err
