"""The independent check: true certificates pass, any changed byte fails, and so does every forgery, by its name."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exegpt_planner import certificate_check
from exegpt_planner.bound import Bound
from exegpt_planner.certificate_file import (
    parse_certificate,
    read_certificate,
)
from exegpt_planner.errors import InvalidSpec, Unavailable
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.schedule import CraSchedule, RraSchedule, WaaSchedule
from planner.builders import (
    MODEL,
    line,
    summarization_like,
    table,
)
from planner.certificates import KV_BYTES, analytic, certified, checked, small

GOLDEN = Path(__file__).parents[1] / "golden" / "certificate.json"


@pytest.mark.parametrize(
    ("strategies", "devices", "winner"),
    [(("RRA",), 1, RraSchedule), (("CRA",), 1, CraSchedule), (("WAA",), 3, WaaSchedule)],
)
@pytest.mark.parametrize("seconds", [0.1, float("inf")])
def test_true_certificates_hold(
    strategies: tuple[str, ...], devices: int, winner: type, seconds: float
) -> None:
    file = small(strategies, seconds, devices)
    assert isinstance(file.schedule, winner)
    found = checked(file)
    assert found.problems == ()
    proof = file.certificate
    leaves = sum(len(space.leaves) for space in proof.spaces)
    assert found.leaves == leaves + len(proof.relaxed)
    assert found.searched == len(proof.spaces)
    assert found.spaces == found.searched + sum(each.number for each in proof.relaxed)


def test_a_plan_over_pipelines_holds() -> None:
    found = checked(analytic("opt-13b", 4, "S", Bound(seconds=5.9)))
    assert found.problems == ()
    assert (found.shapes, found.searched) == (27, 23)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "gpus", "task", "seconds", "mode"),
    [
        ("opt-13b", 4, "S", float("inf"), "p99"),
        ("opt-13b", 4, "T", 10.0, "mean"),
        ("t5-11b", 8, "T", 30.0, "p99"),
        ("t5-11b", 8, "S", float("inf"), "p99"),
        ("gpt3-341b", 48, "G", float("inf"), "p99"),
        ("gpt3-341b", 48, "G", 150.0, "p99"),
    ],
)
def test_plans_for_clusters_hold(
    name: str, gpus: int, task: str, seconds: float, mode: str
) -> None:
    bound = Bound.model_validate({"seconds": seconds, "mode": mode})
    assert checked(analytic(name, gpus, task, bound)).problems == ()


LIMITS = Bound(seconds=9.0, first_token_s=3.0, gap_s=2.0)
OTHERS = Bound(seconds=float("inf"), all_answers_s=12.0, arrivals_per_s=1.0)


@pytest.mark.parametrize(
    ("name", "strategy", "gpus", "bound"),
    [
        ("opt-13b", "RRA", 2, LIMITS),
        ("opt-13b", "CRA", 1, LIMITS),
        ("opt-13b", "WAA", 4, LIMITS),
        ("opt-13b", "WAA", 4, OTHERS),
        ("t5-11b", "RRA", 2, OTHERS),
        ("t5-11b", "WAA", 4, LIMITS),
        ("t5-11b", "WAA", 4, Bound(seconds=8.0, mode="mean")),
        pytest.param("opt-13b", "CRA", 4, LIMITS, marks=pytest.mark.slow),
        pytest.param("opt-13b", "CRA", 4, OTHERS, marks=pytest.mark.slow),
        pytest.param("gpt3-341b", "WAA", 48, Bound(seconds=150.0), marks=pytest.mark.slow),
        pytest.param("gpt3-341b", "CRA", 48, Bound(seconds=150.0), marks=pytest.mark.slow),
    ],
)
def test_a_winner_of_each_strategy_holds(name: str, strategy: str, gpus: int, bound: Bound) -> None:
    """On pipelines, sides and an encoder-decoder model, and under several limits at once."""
    file = analytic(name, gpus, "S" if gpus < 48 else "G", bound, (strategy,))
    assert file.schedule.strategy == strategy
    assert checked(file).problems == ()


# --- any byte


def test_a_certificate_survives_its_file(tmp_path: Path) -> None:
    file = small(seconds=float("inf"))
    file.write(tmp_path / "proof.json")
    assert read_certificate(tmp_path / "proof.json") == file
    with pytest.raises(Unavailable, match="cannot read"):
        read_certificate(tmp_path / "nowhere.json")


def test_the_golden_file_is_what_would_be_written_and_holds() -> None:
    golden = read_certificate(GOLDEN)
    assert golden.text() == GOLDEN.read_text(encoding="utf-8")
    assert checked(golden).problems == ()
    assert small().schedule == golden.schedule


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_changed_byte_fails(data: st.DataObject) -> None:
    content = small().text().encode()
    at = data.draw(st.integers(0, len(content) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda value: value != content[at]))
    with pytest.raises(InvalidSpec):
        parse_certificate(content[:at] + bytes([byte]) + content[at + 1 :], source="proof")


@pytest.mark.parametrize(
    ("there", "instead"),
    [("{", "{ "), ("\n", ""), ("\n", "\n\n"), ('"seconds":0.1}', '"seconds":0.10}')],
)
def test_the_same_content_in_another_form_fails(there: str, instead: str) -> None:
    text = small().text()
    other = text.replace(there, instead, 1)
    assert other != text
    with pytest.raises(InvalidSpec, match="canonical"):
        parse_certificate(other.encode(), source="proof")


def test_a_winner_at_the_tables_edge_is_flagged() -> None:
    file = certified(
        table=table(queries=line(0.0, 1.5e-5, 40)),
        model=MODEL,
        workload=summarization_like(),
        bound=Bound(seconds=float("inf")),
        memory=MemoryBudget(device_bytes=MODEL.weight_bytes("float32") + 100_000 * KV_BYTES),
        strategies=("RRA",),
        devices=1,
    )
    found = checked(file)
    assert found.problems == ()
    assert any("of what the table covers" in flag for flag in found.flags)


def test_the_checker_can_be_read_in_a_sitting() -> None:
    source = certificate_check.__file__
    assert len(Path(source).read_text(encoding="utf-8").splitlines()) <= 200
