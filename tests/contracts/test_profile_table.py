"""A step's time as the sum of its curves, and where the curves end."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from pydantic import ValidationError

from exegpt_planner.profile_table import Curve, LayerCurves, ProfileTable, StepShape
from exegpt_planner.strict import read_json

GOLDEN = Path(__file__).parents[1] / "golden" / "profile.json"
EDGE = StepShape(
    tokens=2048,
    decode_queries=256,
    decode_context=262_144,
    encode_chunks=32,
    encode_pairs=2_097_152,
    sampled=256,
)
FIELDS = [field.name for field in dataclasses.fields(StepShape)]


def test_a_steps_time_is_the_sum_of_its_parts() -> None:
    table = read_json(ProfileTable, GOLDEN)
    layer_s = 2.6e-4 + 2.1e-5 + 1.7e-4 + 1.9e-5 + 2.4e-4
    assert table.step_s(EDGE) == pytest.approx(16 * layer_s + 3.1e-5 + 4.6e-4 + 1.8e-4)
    half = StepShape(**{name: getattr(EDGE, name) / 2 for name in FIELDS})
    # Tokens interpolate between 64 and 2,048, queries and sampled rows between 1 and 256; the rest from 0.
    layer_s = (
        (3.2e-5 + (2.6e-4 - 3.2e-5) * (1024 - 64) / (2048 - 64))
        + (4e-6 + (2.1e-5 - 4e-6) * 127 / 255)
        + (1.7e-4 + 1.9e-5 + 2.4e-4) / 2
    )
    sampled_s = 3.3e-4 + (4.6e-4 - 3.3e-4) * 127 / 255
    assert table.step_s(half) == pytest.approx(16 * layer_s + 1.55e-5 + sampled_s + 1.8e-4)


def test_an_empty_step_costs_the_overhead() -> None:
    empty = StepShape(**dict.fromkeys(FIELDS, 0))
    assert read_json(ProfileTable, GOLDEN).step_s(empty) == 1.8e-4


@pytest.mark.parametrize("name", FIELDS)
def test_the_table_ends_where_its_knots_end(name: str) -> None:
    table = read_json(ProfileTable, GOLDEN)
    assert table.covers(EDGE)
    assert not table.covers(dataclasses.replace(EDGE, **{name: getattr(EDGE, name) + 1}))


@pytest.mark.parametrize(
    ("x", "seconds", "reason"),
    [
        ((0, 1), (0,), "at least 2"),
        ((0, 1, 2), (0, 1), "3 knots but 2 values"),
        ((1, 2), (0, 1), "start at 0 and increase strictly"),
        ((0, 2, 2), (0, 1, 1), "start at 0 and increase strictly"),
        ((0, 1), (0, -1), "must not be negative"),
        ((0, 1), (0, float("nan")), "finite"),
    ],
)
def test_a_curve_that_is_none_is_refused(
    x: tuple[float, ...], seconds: tuple[float, ...], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        Curve(x=x, seconds=seconds)


@pytest.mark.parametrize("part", ["decode", "encode"])
def test_steps_that_take_no_time_are_refused(part: str) -> None:
    zero = Curve(x=(0.0, 512.0), seconds=(0.0, 0.0))
    some = Curve(x=(0.0, 512.0), seconds=(0.0, 1e-3))
    layer = LayerCurves(
        tokens=zero,
        decode_queries=zero if part == "decode" else some,
        decode_context=zero,
        encode_chunks=zero if part == "encode" else some,
        encode_pairs=zero,
    )
    data = read_json(ProfileTable, GOLDEN).model_dump() | {
        "layer": layer.model_dump(),
        "step_overhead_s": 0.0,
    }
    with pytest.raises(ValidationError, match=f"{part}s one .* takes no time"):
        ProfileTable.model_validate(data)
