"""Forged certificates, their hashes made anew: each fails, by its name."""

from __future__ import annotations

import pytest

from exegpt_planner.bound import Bound
from planner.certificates import Json, analytic, checked, forged, piped, small


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


@pytest.mark.parametrize(("strategy", "devices"), [("RRA", 1), ("CRA", 1), ("WAA", 3)])
def test_the_second_best_is_no_winner(strategy: str, devices: int) -> None:
    """A true schedule with a true prediction, but another has more throughput."""
    best = small((strategy,), devices=devices)
    tighter = small((strategy,), 0.95 * best.prediction.promised_s, devices)
    assert tighter.prediction.queries_per_s < best.prediction.queries_per_s

    def change(content: Json) -> None:
        second = tighter.model_dump(mode="json")
        content["schedule"], content["prediction"] = second["schedule"], second["prediction"]

    problems = checked(forged(best, change)).problems
    assert any("queries/s and promises" in each for each in problems)
    assert not any(each.startswith(("prediction", "schedule")) for each in problems)


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


def _bounded(content: Json, strategy: str) -> Json:
    found: Json = next(r for r in content["certificate"]["relaxed"] if r["strategy"] == strategy)
    return found


def _remove_pair(content: Json) -> None:
    spaces = content["certificate"]["spaces"]
    spaces.remove(next(each for each in reversed(spaces) if each["strategy"] == "WAA"))


def _remove_pairs(content: Json) -> None:
    content["certificate"]["relaxed"].remove(_bounded(content, "WAA"))


def _count_fewer(content: Json) -> None:
    _bounded(content, "WAA")["number"] -= 1


def _lower_pairs(content: Json) -> None:
    _bounded(content, "WAA")["throughput"] = 0.1


def _raise_pairs(content: Json) -> None:
    _bounded(content, "WAA")["throughput"] = 1.001 * content["prediction"]["queries_per_s"]


def _no_pair(content: Json) -> None:
    _bounded(content, "WAA")["shape"] += 1


def _split(content: Json) -> None:
    spaces = content["certificate"]["spaces"]
    next(each for each in spaces if each["strategy"] == "WAA")["split"] = [7, 9]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_remove_pair, r"pairs not searched, \d+ bounded"),
        (_remove_pairs, "pairs not searched, none bounded"),
        (_count_fewer, r"pairs not searched, \d+ bounded"),
        (_lower_pairs, "WAA on pair .* more than its bound"),
        (_raise_pairs, "WAA on pair .* does not settle it, the winner has"),
        (_no_pair, "WAA on pair .* no such space"),
        (_split, "WAA on pair .* its split is"),
    ],
)
def test_pairs_that_are_bounded_as_a_whole_cannot_be_forged(change: object, words: str) -> None:
    assert callable(change)
    file = analytic("opt-13b", 4, "S", Bound(seconds=5.9), ("WAA",))
    problems = checked(forged(file, change)).problems
    with pytest.raises(AssertionError, match=words):
        raise AssertionError("\n".join(problems))


def test_shapes_that_are_bounded_as_a_whole_cannot_be_forged() -> None:
    """Three at once: all that is wrong is said."""
    file = analytic("opt-13b", 4, "S", Bound(seconds=5.9), ("CRA",))
    shapes = [each.shape for each in file.certificate.relaxed]

    def change(content: Json) -> None:
        records = content["certificate"]["relaxed"]
        records[0]["throughput"] = 0.1
        records[1]["number"] = 2
        records[2]["throughput"] = 1.001 * content["prediction"]["queries_per_s"]
        del records[3]

    problems = checked(forged(file, change)).problems
    for number, words in zip(
        shapes[:4],
        ("than its bound", "neither searched", "does not settle it", "neither searched"),
        strict=True,
    ):
        named = [each for each in problems if each.startswith(f"CRA on shape {number}")]
        assert any(words in each for each in named)
    assert {each.split(",")[0].split(":")[0] for each in problems} == {
        f"CRA on shape {number}" for number in shapes[:4]
    }


def test_a_leaf_outside_its_space_fails() -> None:
    def change(content: Json) -> None:
        for space in content["certificate"]["spaces"]:
            space["leaves"].append(
                {"block": [1, 10**6, 1, 10**6], "reason": "throughput", "bound": 0.0}
            )

    for file in (small(), small(("CRA",)), small(("WAA",), 0.1, 3)):
        (problem,) = checked(forged(file, change)).problems
        assert "is no part of it" in problem
