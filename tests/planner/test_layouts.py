"""Layouts and shapes: which there are, how their layers lie, what fits beside the weights."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exegpt_planner.builtin_models import builtin_model
from exegpt_planner.completion import CompletionLaw
from exegpt_planner.hardware.analytic import analytic_table
from exegpt_planner.hardware.clusters import cluster_of
from exegpt_planner.layout import Typical, bills, layouts, slowest_kinds
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.shapes import micro_batches, room_of, shapes
from exegpt_planner.simulator.costs import costs_of, step_costs
from exegpt_planner.tasks import paper_task
from planner.builders import table

LAW = CompletionLaw(paper_task("S"))
OPT = builtin_model("opt-13b")
BUDGET = MemoryBudget(device_bytes=48 << 30, reserve_bytes=2 << 30)


def analytic(model: str, device: str, devices: int) -> ProfileTable:
    return analytic_table(builtin_model(model), cluster_of(device, devices), "float16")


FOUR = analytic("opt-13b", "a40", 4)
TYPICAL = Typical.of(LAW, FOUR)


def degrees(devices: int, units: int = 1) -> list[list[int]]:
    return [
        [stage.degree for stage in layout.stages]
        for layout in layouts(FOUR, TYPICAL, devices, units)
    ]


def test_partial_tensor_parallelism_is_one_degree_on_some_of_the_devices() -> None:
    assert [list(each) for each in sorted({tuple(each) for each in degrees(4)})] == [
        [1, 1, 1, 1],
        [2, 1, 1],
        [2, 2],
        [4],
    ]


def test_a_group_never_spans_nodes_wherever_its_unit_begins() -> None:
    sixteen = analytic("gpt3-39b", "a40", 16)
    typical = Typical.of(LAW, sixteen)

    def largest(devices: int, units: int) -> int:
        return max(layout.degree for layout in layouts(sixteen, typical, devices, units))

    assert largest(16, 1) == 8
    assert largest(4, 4) == 4
    assert largest(5, 3) == 1  # a pair would begin at device 5, 10, ...


def test_a_model_that_is_not_shared_lies_on_one_device() -> None:
    machine = table()
    typical = Typical.of(LAW, machine)
    assert layouts(machine, typical, 2) == []
    (alone,) = layouts(machine, typical, 1, 2)
    assert [(stage.degree, stage.layers) for stage in alone.stages] == [(1, 4)]


@given(devices=st.integers(1, 48), units=st.sampled_from([1, 2, 3]))
def test_every_layer_lies_on_one_stage_and_no_stage_is_empty(devices: int, units: int) -> None:
    large = analytic("gpt3-341b", "a40", 48)
    for layout in layouts(large, Typical.of(LAW, large), devices, units):
        assert layout.devices == devices
        assert sum(stage.layers for stage in layout.stages) == 120
        assert min(stage.layers for stage in layout.stages) >= 1


def test_layers_of_equal_stages_are_even_and_a_group_takes_more() -> None:
    found = layouts(FOUR, TYPICAL, 4)
    even = next(each for each in found if len(each.stages) == 4)
    assert [stage.layers for stage in even.stages] == [10, 10, 10, 10]
    uneven = [each for each in found if len(each.stages) == 3]
    for layout in uneven:
        group, *singles = layout.stages
        assert group.layers > max(stage.layers for stage in singles)


def test_the_bill_of_one_device_costs_what_the_table_says() -> None:
    (alone,) = layouts(FOUR, TYPICAL, 1, 4)
    ours, whole = step_costs(FOUR, bills(alone, FOUR, 4).whole), costs_of(FOUR)
    for name in ("per_query", "per_token", "per_context", "per_pair", "per_chunk"):
        assert float(getattr(ours, name)(100.0)) == pytest.approx(
            float(getattr(whole, name)(100.0))
        )


def test_sends_between_nodes_are_where_stages_end_with_a_node() -> None:
    machine = analytic("gpt3-39b", "a40", 16)
    layout = next(
        each
        for each in layouts(machine, Typical.of(LAW, machine), 16)
        if [stage.degree for stage in each.stages] == [8, 8]
    )
    first, last = bills(layout, machine).stages
    assert first["send_between", 1] == 1
    assert last["send_between", 1] == last["send_inside", 1] == 0
    assert (first["embedding", 8], last["head", 8]) == (1, 1)


def test_stages_that_another_exceeds_in_everything_are_never_the_slowest() -> None:
    machine = analytic("gpt3-341b", "a40", 48)
    for layout in layouts(machine, Typical.of(LAW, machine), 48):
        kinds = slowest_kinds(bills(layout, machine))
        assert 1 <= len(kinds) <= 6
        most = max(stage.layers for stage in layout.stages)
        assert any(
            count == most for kind in kinds for (what, _), count in kind.items() if what == "layer"
        )


def test_room_is_what_the_fullest_stage_has_left() -> None:
    found = layouts(FOUR, TYPICAL, 4)
    whole = next(each for each in found if len(each.stages) == 1)
    room = room_of(whole, OPT, "float16", BUDGET)
    assert room is not None
    weights, each = OPT.weight_bytes("float16"), OPT.kv_bytes_per_token("float16")
    assert room.kv_tokens == (4 * (46 << 30) - weights) // each
    staged = room_of(next(e for e in found if len(e.stages) == 4), OPT, "float16", BUDGET)
    assert staged is not None
    assert staged.kv_tokens < room.kv_tokens  # the embedding and the head lie at its ends
    assert staged.stage in (0, 3)


def test_activations_take_room_where_the_reserve_does_not_hold_them() -> None:
    layout = layouts(FOUR, TYPICAL, 4)[0]
    kept, apart = (
        room_of(layout, OPT, "float16", replace(BUDGET, holds_activations=holds))
        for holds in (True, False)
    )
    assert kept is not None
    assert apart is not None
    assert kept.activation_tokens == 0 < apart.activation_tokens


def test_shapes_are_of_all_units_that_divide_the_devices_and_whose_weights_fit() -> None:
    found = list(shapes(FOUR, OPT, BUDGET, TYPICAL, 4))
    assert {shape.units for shape in found} == {1, 2, 4}
    assert all(shape.units * shape.layout.devices == 4 for shape in found)
    small = MemoryBudget(device_bytes=20 << 30)  # 25.7 GB of weights
    assert {shape.units for shape in shapes(FOUR, OPT, small, TYPICAL, 4)} == {1, 2}


def test_micro_batches_are_up_to_twice_the_stages() -> None:
    assert micro_batches(1) == [1]
    assert micro_batches(5) == [1, 2, 3, 4, 5, 6, 8]
