from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from exegpt_cli.output import check_writable, fail, log_warnings, progress
from exegpt_planner.errors import InfeasibleBound, InvalidSpec


def test_many_problems_are_listed_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    code = fail(InvalidSpec("x.yaml", [f"field{index}: wrong" for index in range(40)]))
    err = capsys.readouterr().err.splitlines()
    assert code == 2
    assert err[0] == "error: x.yaml:"
    assert err[1] == "  - field0: wrong"
    assert err[-1].strip() == "... and 25 more"
    assert len(err) < 24


def test_an_error_is_its_message_and_brackets_are_no_markup(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fail(InfeasibleBound("no schedule [red]meets[/red] it")) == 4
    assert capsys.readouterr().err == "error: no schedule [red]meets[/red] it\n"


def test_asking_whether_a_file_can_be_written_changes_nothing(tmp_path: Path) -> None:
    old, pipe, link = tmp_path / "old", tmp_path / "pipe", tmp_path / "link"
    old.write_text("kept")
    os.mkfifo(pipe)  # opening it would wait for a reader
    link.symlink_to("old")
    for path in (old, pipe, link, tmp_path / "new"):
        check_writable(path, "--csv")
    assert sorted(os.listdir(tmp_path)) == ["link", "old", "pipe"]
    assert old.read_text() == "kept"


def test_without_a_terminal_progress_is_a_line_for_each_thing_that_begins(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress("Profiling") as report:
        report(0, 0, "another process measures it; waiting")
        for done in range(3):
            report(done, 3, "timing steps")
    lines = ["Profiling ...", "  another process measures it; waiting ...", "  timing steps ..."]
    assert capsys.readouterr().err.splitlines() == lines


def test_on_a_terminal_of_any_width_all_that_is_going_on_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with progress("Profiling a model [bfloat16] on a processor with quite a long name") as report:
        report(0, 0, "another process measures this profile; waiting for it")
    err = capsys.readouterr().err
    assert not [word for word in ("[bfloat16]", "another", "profile;", "it") if word not in err]


def test_a_warning_is_a_sentence_with_its_values(capsys: pytest.CaptureFixture[str]) -> None:
    log = logging.getLogger("exegpt_gateway")
    before = list(log.handlers), log.level, log.propagate
    try:
        log_warnings()
        logging.getLogger("exegpt_gateway.conductor").warning(
            "worker lost", extra={"queries_in_flight": 3}
        )
        logging.getLogger("exegpt_gateway.conductor").info("not shown")
    finally:
        for name in ("exegpt_gateway", "exegpt_runner", "exegpt_planner"):
            logging.getLogger(name).handlers.clear()
            logging.getLogger(name).propagate = True
        log.handlers, log.propagate = before[0], before[2]
        log.setLevel(before[1])
    assert capsys.readouterr().err == "worker lost: queries_in_flight=3\n"
