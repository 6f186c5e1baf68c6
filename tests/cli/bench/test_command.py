from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cli.fake_openai import FakeServer, serving
from cli.manifests import run_cli, write_manifest
from exegpt_cli.bench.report import BenchReport
from exegpt_cli.main import app

LENGTHS = ["--input-lengths", "12,4,24", "--output-lengths", "8,4,20"]
QUICK = ["--duration", "30", "--queries", "40", "--warm-up", "0", "--in-flight", "5"]


def bench(*arguments: str) -> None:
    app(["bench", *arguments], standalone_mode=False)


def test_json_goes_to_stdout_alone_and_the_answers_to_a_csv(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "answers.csv"
    with serving(FakeServer()) as fake:
        options = ["--url", fake.url, "--model", "fake", "--bound", "5", "--csv", str(out)]
        bench(*options, *LENGTHS, *QUICK, "-o", "json")
    report = BenchReport.model_validate_json(capsys.readouterr().out)
    assert report.clock == "sending"
    assert report.arrivals == "saturated, 5 in flight"
    assert report.num_failed == 0
    assert report.predicted is None
    assert report.s99_within_bound is not None
    assert report.s99_within_bound.share == 1.0
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert len(rows) == 40
    assert {row["error"] for row in rows} == {""}
    assert sum(row["is_s99"] == "1" for row in rows) >= report.s99_within_bound.num


def test_the_table_names_the_clock_and_the_share_within_the_bound(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = write_manifest(tmp_path)  # only its lengths are read
    with serving(FakeServer()) as fake:
        options = ["--url", fake.url + "/", "--model", "fake", "-f", str(file), "--rate", "50"]
        bench(*options, "--duration", "30", "--queries", "30", "--warm-up", "0", "--bound", "0.001")
    out = capsys.readouterr().out
    assert "Poisson, 50 per second" in out
    assert "Completion is timed from sending" in out
    assert "0 of " in out
    assert "interval 0.0% to" in out


def test_a_csv_that_cannot_be_written_is_refused_before_the_load(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving(FakeServer()) as fake:
        options = ["--url", fake.url, "--model", "fake", "--csv", str(tmp_path / "no" / "x.csv")]
        assert run_cli(monkeypatch, "bench", *options, *LENGTHS, *QUICK) == 5
    assert "Choose another file" in capsys.readouterr().err
    assert fake.bodies == []


def test_a_csv_whose_disk_fills_up_is_an_error_with_a_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(FakeServer()) as fake:
        options = ["--url", fake.url, "--model", "fake", "--csv", "/dev/full"]
        assert run_cli(monkeypatch, "bench", *options, *LENGTHS, *QUICK) == 5
    err = capsys.readouterr().err
    assert "/dev/full: No space left on device. Choose another --csv" in err


def test_a_report_survives_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(FakeServer(own_clock=True)) as fake:
        bench("--url", fake.url, "--model", "fake", *LENGTHS, *QUICK, "-o", "json")
    text = capsys.readouterr().out
    report = BenchReport.model_validate_json(text)
    assert report.clock == "encode start"
    assert json.loads(report.model_dump_json()) == json.loads(text)
