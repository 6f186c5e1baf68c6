"""The independent check: true certificates pass, any changed byte fails, and so does every forgery, by its name."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exegpt_planner import certificate_check
from exegpt_planner.bound import Bound
from exegpt_planner.builtin_models import builtin_model
from exegpt_planner.certificate_file import (
    CertificateFile,
    parse_certificate,
    read_certificate,
)
from exegpt_planner.errors import InvalidSpec, Unavailable
from exegpt_planner.hardware.analytic import analytic_table
from exegpt_planner.hardware.calibrations import calibration
from exegpt_planner.hardware.clusters import cluster_of
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.schedule import CraSchedule, RraSchedule, WaaSchedule
from exegpt_planner.tasks import paper_task
from planner.builders import (
    MODEL,
    bell,
    independent,
    line,
    rough_parallel,
    rough_table,
    summarization_like,
    table,
)
from planner.certificates import Json, certified, checked, forged

GOLDEN = Path(__file__).parents[1] / "golden" / "certificate.json"
KV_BYTES = MODEL.kv_bytes_per_token("float32")


@cache
def small(
    strategies: tuple[str, ...] = ("RRA",), seconds: float = 0.1, devices: int = 1
) -> CertificateFile:
    return certified(
        table=table(queries=line(0.0, 1.5e-5, 60)),
        model=MODEL,
        workload=summarization_like(),
        bound=Bound(seconds=seconds),
        memory=MemoryBudget(device_bytes=MODEL.weight_bytes("float32") + 3000 * KV_BYTES),
        strategies=strategies,
        devices=devices,
    )


def analytic(name: str, gpus: int, task: str, seconds: float, mode: str = "p99") -> CertificateFile:
    model, cluster = builtin_model(name), cluster_of("a40", gpus)
    return certified(
        table=analytic_table(
            model, cluster, "float16", efficiencies=calibration("a40", "datasheet")
        ),
        model=model,
        workload=paper_task(task),
        bound=Bound.model_validate({"seconds": seconds, "mode": mode}),
        memory=MemoryBudget(
            device_bytes=cluster.device.memory_bytes,
            reserve_bytes=2 << 30,
            holds_activations=False,
        ),
        strategies=("RRA", "WAA", "CRA"),
        devices=gpus,
    )


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
    found = checked(analytic("opt-13b", 4, "S", 5.9))
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
    assert checked(analytic(name, gpus, task, seconds, mode)).problems == ()


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


# --- forgeries


def _leaf(reason: str) -> int:
    leaves = small().certificate.spaces[0].leaves
    return next(i for i, leaf in enumerate(leaves) if leaf.reason == reason)


def _leaves(content: Json) -> list[Json]:
    found: list[Json] = content["certificate"]["spaces"][0]["leaves"]
    return found


def _remove_leaf(content: Json) -> None:
    del _leaves(content)[0]


def _shrink_leaf(content: Json) -> None:
    wide = next(leaf for leaf in _leaves(content) if leaf["block"][0] < leaf["block"][1])
    wide["block"][1] -= 1


def _double_leaf(content: Json) -> None:
    _leaves(content).append(_leaves(content)[0])


def _shrink_space(content: Json) -> None:
    content["certificate"]["spaces"][0]["space"][3] -= 1


def _leave_space_out(content: Json) -> None:
    del content["certificate"]["spaces"][1]


def _raise_prediction(content: Json) -> None:
    content["prediction"]["queries_per_s"] *= 1.01


def _lower_promise(content: Json) -> None:
    content["prediction"]["promised_s"] *= 0.99


def _edit_table(content: Json) -> None:
    content["table"]["dispatch_s"] *= 0.5


def _edit_workload(content: Json) -> None:
    content["workload"]["input_mean"][3] += 1.0


def _tighten(content: Json) -> None:
    content["bound"]["seconds"] = content["prediction"]["promised_s"] * 0.9


def _raise_leaf(content: Json) -> None:
    _leaves(content)[_leaf("throughput")]["bound"] = content["prediction"]["queries_per_s"] * 1.1


def _lower_leaf(content: Json) -> None:
    _leaves(content)[_leaf("throughput")]["bound"] *= 0.1


def _lower_latency_leaf(content: Json) -> None:
    _leaves(content)[_leaf("latency")]["bound"] = 0.05


def _raise_latency_leaf(content: Json) -> None:
    _leaves(content)[_leaf("latency")]["bound"] = 1e6


def _call_blocked(content: Json) -> None:
    leaf = _leaves(content)[_leaf("evaluated")]
    leaf["reason"] = "memory"


def _more_memory(content: Json) -> None:
    content["memory"]["device_bytes"] *= 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_remove_leaf, "schedules are in no leaf"),
        (_shrink_leaf, "schedules are in no leaf"),
        (_double_leaf, "schedules are in several leaves"),
        (_shrink_space, "knobs are"),
        (_raise_prediction, "prediction.queries_per_s"),
        (_lower_promise, "prediction.promised_s"),
        (_edit_table, "table: "),
        (_edit_workload, "workload: "),
        (_tighten, "schedule: promises"),
        (_raise_leaf, "does not settle it, the winner has"),
        (_lower_leaf, "more than its bound"),
        (_lower_latency_leaf, "does not settle it, the bound is"),
        (_raise_latency_leaf, "less than its bound"),
        (_call_blocked, "memory .* has"),
        (_more_memory, "memory: "),
    ],
)
def test_a_forgery_with_its_hash_made_anew_fails(change: object, words: str) -> None:
    assert callable(change)
    problems = checked(forged(small(), change)).problems
    with pytest.raises(AssertionError, match=words):
        raise AssertionError("\n".join(problems))


def test_a_space_left_out_fails() -> None:
    problems = checked(forged(small(("RRA", "CRA")), _leave_space_out)).problems
    assert "CRA on shape 0: neither searched nor bounded" in problems


def test_the_second_best_is_no_winner() -> None:
    """A true schedule with a true prediction, but another has more throughput."""
    best = small()
    tighter = small(seconds=0.95 * best.prediction.promised_s)
    assert tighter.prediction.queries_per_s < best.prediction.queries_per_s

    def change(content: Json) -> None:
        second = tighter.model_dump(mode="json")
        content["schedule"], content["prediction"] = second["schedule"], second["prediction"]

    problems = checked(forged(best, change)).problems
    assert any("evaluated" in each and "queries/s and promises" in each for each in problems)
    assert not any(each.startswith(("prediction", "schedule")) for each in problems)


@cache
def piped(seconds: float) -> CertificateFile:
    return certified(
        table=rough_parallel(rough_table(np.random.default_rng(3)), np.random.default_rng(4)),
        model=MODEL,
        workload=independent(bell(20, 9, 40), bell(7, 3, 14)),
        bound=Bound(seconds=seconds),
        memory=MemoryBudget(device_bytes=2 * MODEL.weight_bytes("float32") + 3000 * KV_BYTES),
        strategies=("RRA",),
        devices=2,
    )


def test_a_shape_that_could_win_is_not_settled_by_a_word() -> None:
    """A space with better schedules than the winner, given out as bounded."""
    best = piped(float("inf"))
    assert checked(best).problems == ()
    tighter = piped(0.95 * best.prediction.promised_s)
    assert tighter.prediction.queries_per_s < best.prediction.queries_per_s

    def change(content: Json) -> None:
        second = tighter.model_dump(mode="json")
        content["schedule"], content["prediction"] = second["schedule"], second["prediction"]
        relaxed = [
            {
                "strategy": "RRA",
                "shape": space.get("shape", 0),
                "throughput": 0.99 * tighter.prediction.queries_per_s,
            }
            for space in content["certificate"].pop("spaces")
        ]
        content["certificate"]["spaces"] = []
        content["certificate"].setdefault("relaxed", []).extend(relaxed)

    problems = checked(forged(best, change)).problems
    assert any("RRA on shape" in each and "queries/s and promises" in each for each in problems)
    assert any("in none of the spaces searched" in each for each in problems)


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
