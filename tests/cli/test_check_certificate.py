"""A plan's proof written to a file, and checked from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.manifests import run_cli
from exegpt_planner.certificate_file import Checked, read_certificate

ASKED = ("--model", "opt-13b", "--device", "a40", "--gpus", "2", "--strategy", "RRA", "--task", "S")


@pytest.mark.parametrize("bound", ["8", "inf"])
def test_a_written_proof_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    proof = tmp_path / "proof.json"
    arguments = (*ASKED, "--bound", bound, "--certificate", str(proof))
    assert run_cli(monkeypatch, "plan", *arguments, "-o", "json") == 0
    captured = capsys.readouterr()
    plan = json.loads(captured.out)
    assert f"exegpt check-certificate {proof}" in captured.err.replace("\n", "")
    assert run_cli(monkeypatch, "check-certificate", str(proof)) == 0
    text = capsys.readouterr().out
    within = "no schedule has" if bound == "inf" else f"no schedule within {bound} s has"
    assert f"{within} more throughput than {plan['prediction']['queries_per_s']:.2f}" in text
    assert run_cli(monkeypatch, "check-certificate", str(proof), "-o", "json") == 0
    found = Checked.model_validate_json(capsys.readouterr().out)
    assert found.problems == ()
    assert found.shapes == plan["certificate"].get("num_shapes", 1)


def test_every_problem_of_a_forgery_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = tmp_path / "proof.json"
    assert run_cli(monkeypatch, "plan", *ASKED, "--bound", "8", "--certificate", str(proof)) == 0
    true = read_certificate(proof)
    prediction = true.prediction.model_copy(update={"cycle_s": 2 * true.prediction.cycle_s})
    false = true.model_copy(update={"prediction": prediction, "length_tokens": 7})
    false.write(proof)
    assert run_cli(monkeypatch, "check-certificate", str(proof)) == 2
    errors = capsys.readouterr().err
    assert "length_tokens: 63 by the inputs, the certificate says 7" in errors
    assert "prediction.cycle_s: " in errors


def test_a_changed_byte_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = tmp_path / "proof.json"
    assert run_cli(monkeypatch, "plan", *ASKED, "--bound", "8", "--certificate", str(proof)) == 0
    content = proof.read_bytes()
    proof.write_bytes(content.replace(b'"devices":2', b'"devices":3'))
    assert run_cli(monkeypatch, "check-certificate", str(proof)) == 2
    assert "changed since it was written: sha256 is" in capsys.readouterr().err


def test_a_proof_that_cannot_be_written_is_said_before_planning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = str(tmp_path / "no" / "proof.json")
    assert run_cli(monkeypatch, "plan", *ASKED, "--bound", "8", "--certificate", nowhere) == 5
    assert "cannot write --certificate" in capsys.readouterr().err
