"""What `exegpt bench` writes for programs: its names and meanings stay, and docs/formats.md shows it."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from exegpt_cli.bench.client import Answer
from exegpt_cli.bench.load import Load
from exegpt_cli.bench.queries import Query
from exegpt_cli.bench.report import BenchReport, Speed, StageVariation, measured, write_csv
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.schedule import Prediction, RraSchedule
from exegpt_planner.strict import parse, read_json

GOLDEN = Path(__file__).parents[2] / "golden"
REPORT, ANSWERS = GOLDEN / "bench.json", GOLDEN / "answers.csv"
FORMATS = Path(__file__).parents[3] / "docs" / "formats.md"
S99 = 4  # tokens


def query(index: int, output_tokens: int) -> Query:
    return Query(index=index, prompt=(7,) * (10 + index), output_tokens=output_tokens)


def answered(index: int, sent_s: float, *chunks_s: float) -> Answer:
    """An answer whose tokens came `chunks_s` after it was sent; it was queued for the first 0.125 s."""
    return Answer(
        query=query(index, len(chunks_s)),
        sent_s=sent_s,
        chunks_s=[sent_s + each for each in chunks_s],
        finished_s=sent_s + chunks_s[-1],
        completion_tokens=len(chunks_s),
        server_queued_s=0.125,
        server_completion_s=chunks_s[-1] - 0.125,
    )


LOAD = Load(
    answers=[
        answered(0, 100.0, 0.25, 0.5, 0.75),  # in the warm-up
        answered(1, 101.0, 0.25, 0.5, 0.75, 1.125),
        answered(2, 101.5, 0.5, 1.0, 1.5, 2.625),
        answered(3, 102.0, 0.25, 0.75),
        Answer(query=query(4, 2), sent_s=103.0, error="HTTP 500: out of order"),
    ],
    started_s=100.0,
    stopped_s=105.0,
)
PREDICTED = Prediction(
    queries_per_s=0.8,
    tokens_per_s=2.5,
    cycle_s=0.5,
    encode_share=0.25,
    first_token_s=0.125,
    latency_mean_s=1.5,
    latency_sd_s=0.25,
    latency_p99_s=2.0,
    promised_s=2.125,
    pool_mean=1.5,
    pool_sd=0.5,
    kv_tokens=40.0,
    kv_tokens_reserved=192.0,
)


def report() -> BenchReport:
    return measured(
        LOAD,
        warm_up_s=1.0,
        s99=S99,
        bound_s=2.25,
        target="small on this machine",
        arrivals="saturated, 2 in flight",
        saturated=True,
        cycle_s=0.5,
        speed=Speed(slowdown=1.25, beside_profile=1.04),
        stage_variation=StageVariation(encode=0.0625, decode=0.03125, mixed=0.046875),
        schedule=RraSchedule(encode_batch=1, encode_interval=3),
        predicted=PREDICTED,
    )


def rounded(text: str) -> Any:
    """The JSON in `text`; the interval's last digits are its library's affair."""
    return json.loads(text, parse_float=lambda digits: round(float(digits), 9))


def documented(language: str) -> list[str]:
    text = FORMATS.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_a_load_makes_the_stored_report() -> None:
    assert rounded(report().model_dump_json()) == rounded(REPORT.read_text(encoding="utf-8"))


def test_the_stored_report_is_read_and_written_back_unchanged_as_the_command_prints_it() -> None:
    stored = read_json(BenchReport, REPORT)
    assert stored.model_dump_json(indent=2) + "\n" == REPORT.read_text(encoding="utf-8")


def test_the_stored_report_has_a_value_in_every_field() -> None:
    """So that a field that is renamed or dropped shows."""
    assert None not in read_json(BenchReport, REPORT).model_dump().values()


def test_a_report_of_another_version_is_refused() -> None:
    data = json.loads(REPORT.read_text(encoding="utf-8")) | {"version": "exegpt.bench/v2"}
    with pytest.raises(InvalidSpec, match=r"version: Input should be 'exegpt\.bench/v1'"):
        parse(BenchReport, data, source="bench.json")


def test_a_load_makes_the_stored_answers_byte_by_byte(tmp_path: Path) -> None:
    write_csv(tmp_path / "answers.csv", LOAD, S99)
    assert (tmp_path / "answers.csv").read_bytes() == ANSWERS.read_bytes()


def test_the_documented_report_and_answers_are_the_stored_ones() -> None:
    stored = json.loads(REPORT.read_text(encoding="utf-8"))
    assert stored in [json.loads(each) for each in documented("json")]
    assert ANSWERS.read_text(encoding="utf-8") in documented("csv")


def test_every_column_of_the_answers_is_documented() -> None:
    with ANSWERS.open(newline="", encoding="utf-8") as file:
        (header, *_) = csv.reader(file)
    section = FORMATS.read_text(encoding="utf-8").split("## Answers of a load")[1].split("\n## ")[0]
    assert set(header) <= set(re.findall(r"`(\w+)`", section))
