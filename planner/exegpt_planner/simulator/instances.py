"""WAA's encoders and decoders: what a step costs on each, and the KV's way between them.

Of the sends between an instance's stages those count as between nodes that are so in any of its side.
"""

from __future__ import annotations

from exegpt_planner.layout import bills
from exegpt_planner.placing import Sides, placed, sides_of, whole_on_a_device
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import WaaSchedule
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.costs import hand_over_of
from exegpt_planner.simulator.pipeline import Costs, Pipeline
from exegpt_planner.simulator.waa import Instances


def side_on(table: ProfileTable, side: Shape, start: int, costs: Costs | None = None) -> Pipeline:
    """An instance of one side, which begins at device `start`; `costs` are shared by stages alike."""
    found = bills(side.layout, table, side.units, start)
    return Pipeline.through(found, side, costs or Costs(table))


def joined(table: ProfileTable, encoder: Pipeline, decoder: Pipeline, sides: Sides) -> Instances:
    """Both sides, and the KV's way between them."""
    layouts = sides[0].layout, sides[1].layout
    whole = whole_on_a_device(table)
    return Instances(
        encoder=encoder,
        decoder=decoder,
        hand_over=hand_over_of(table, *(layout.mean_degree for layout in layouts)),
        devices=(layouts[0].devices, layouts[1].devices),
        layouts=None if layouts == (whole, whole) else layouts,
    )


def instances_of(schedule: WaaSchedule, table: ProfileTable) -> Instances:
    """What a schedule runs on."""
    sides = sides_of(schedule, table)
    starts = placed(table, *sides) or (0, 0)  # set by hand: as if every node began with it
    encoder, decoder = (side_on(table, *each) for each in zip(sides, starts, strict=True))
    return joined(table, encoder, decoder, sides)
