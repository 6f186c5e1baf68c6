"""Where WAA's encoders and decoders lie on the devices.

The instances of one side lie one behind the other, one side behind the other: the encoders first, or where a
tensor-parallel group would then span nodes, the decoders.
"""

from __future__ import annotations

from exegpt_planner.layout import Layout, StageLayout, lie_in_nodes
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import WaaSchedule
from exegpt_planner.shapes import Room, Shape

Sides = tuple[Shape, Shape]  # encoders, decoders
Starts = tuple[int, int]  # the devices at which encoders and decoders begin

UNKNOWN = Room(kv_tokens=0, activation_tokens=0.0, stage=0)


def whole_on_a_device(table: ProfileTable) -> Layout:
    """One device with all layers."""
    encoders = 0 if table.encoder is None else table.encoder.num_layers
    return Layout(stages=(StageLayout(degree=1, layers=table.num_layers, encoder_layers=encoders),))


def placed(table: ProfileTable, encoders: Shape, decoders: Shape) -> Starts | None:
    """Where both sides begin; None if a group would span nodes either way."""
    orders = (0, _devices(encoders)), (_devices(decoders), 0)
    for starts in orders:
        sides = zip((encoders, decoders), starts, strict=True)
        if all(lie_in_nodes(side.layout, table, side.units, start) for side, start in sides):
            return starts
    return None


def _devices(side: Shape) -> int:
    return side.units * side.layout.devices


def sides_of(schedule: WaaSchedule, table: ProfileTable) -> Sides:
    """A schedule's encoders and decoders, their memory unknown."""
    whole = whole_on_a_device(table)
    encoder, decoder = (whole if each is None else each for each in schedule.layouts)
    return (
        Shape(units=schedule.encoders, layout=encoder, micro_batches=1, room=UNKNOWN),
        Shape(
            units=schedule.decoders,
            layout=decoder,
            micro_batches=schedule.micro_batches,
            room=UNKNOWN,
        ),
    )
