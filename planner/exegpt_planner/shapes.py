"""The shapes that a schedule may have on some devices: units, their layout, micro-batches, and the KV that fits.

A shape is what cannot change without loading weights anew, but for its micro-batches. What a stage holds decides its
memory: its layers, the embedding on the first, the head on the last. KV fits as far as it does on the stage that has
least room for it; a packed token's activations take room there like `activation_tokens` KV tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from exegpt_planner.layout import Layout, StageLayout, Typical, layouts
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.profile_table import ProfileTable

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
PER_STAGE = 2  # micro-batches to a stage at most: beyond, every one is smaller and none waits less


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The KV that a layout holds."""

    kv_tokens: int
    activation_tokens: float  # KV tokens that would fit where one packed token's activations are
    stage: int  # the one that has least room


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One unit of `units`, all alike."""

    units: int
    layout: Layout
    micro_batches: int
    room: Room


def shapes(
    table: ProfileTable,
    model: ModelSpec,
    budget: MemoryBudget,
    typical: Typical,
    devices: int,
) -> Iterator[Shape]:
    """Every shape on `devices` whose weights fit, larger units first."""
    for units in range(1, devices + 1):
        if devices % units:
            continue
        for layout in layouts(table, typical, devices // units, units):
            room = room_of(layout, model, table.key.dtype, budget)
            if room is None:
                continue
            for number in micro_batches(len(layout.stages)):
                yield Shape(units=units, layout=layout, micro_batches=number, room=room)


def device_each(table: ProfileTable, devices: int, kv_tokens: int) -> Shape:
    """Every device a unit of its own that holds the whole model and so many KV tokens."""
    encoders = 0 if table.encoder is None else table.encoder.num_layers
    stage = StageLayout(degree=1, layers=table.num_layers, encoder_layers=encoders)
    return Shape(
        units=devices,
        layout=Layout(stages=(stage,)),
        micro_batches=1,
        room=Room(kv_tokens=kv_tokens, activation_tokens=0.0, stage=0),
    )


def micro_batches(num_stages: int) -> list[int]:
    """Those that are planned for a pipeline of so many stages."""
    if num_stages == 1:
        return [1]
    some = {each for each in MICRO_BATCHES if each <= PER_STAGE * num_stages}
    return sorted(some | {num_stages})


def room_of(layout: Layout, model: ModelSpec, dtype: str, budget: MemoryBudget) -> Room | None:
    """The KV that fits beside a layout's weights; None if they do not.

    Encoder layers alone hold the cross-attention's KV of all decoder layers, which each makes its share of; decoder
    layers alone leave out what makes it.
    """
    each_kv = model.kv_bytes_per_token_layer(dtype)
    activation = 0 if budget.holds_activations else _activation_bytes(model, dtype)
    last = len(layout.stages) - 1
    found: dict[tuple[int, int, int, bool, bool], tuple[float, float]] = {}
    tokens: list[float] = []
    activations = []
    for index, stage in enumerate(layout.stages):
        kind = stage.degree, stage.layers, stage.encoder_layers, index == 0, index == last
        if kind not in found:
            weights, kv_layers = _held(layout, index, model, dtype)
            free = budget.device_bytes - budget.reserve_bytes - weights / stage.degree
            kv = kv_layers * each_kv / stage.degree
            found[kind] = free / kv, activation / kv
        tokens.append(found[kind][0])
        activations.append(found[kind][1])
    least = min(tokens)
    if least < 1:
        return None
    return Room(kv_tokens=int(least), activation_tokens=max(activations), stage=tokens.index(least))


def stage_weight_bytes(layout: Layout, model: ModelSpec, dtype: str) -> list[float]:
    """Bytes of weights on each device of every stage."""
    return [
        _held(layout, index, model, dtype)[0] / stage.degree
        for index, stage in enumerate(layout.stages)
    ]


def _held(layout: Layout, index: int, model: ModelSpec, dtype: str) -> tuple[float, float]:
    """(weight bytes of a stage, decoder layers whose KV it holds)."""
    stage, last = layout.stages[index], len(layout.stages) - 1
    cross = model.cross_kv_weight_bytes(dtype)
    weights = stage.encoder_layers * model.encoder_layer_weight_bytes(dtype)
    weights += stage.layers * model.layer_weight_bytes(dtype)
    if not layout.has_head:  # an instance that only encodes, of an encoder-decoder model
        makes = stage.encoder_layers * model.num_layers / model.num_encoder_layers
        first = model.embedding_weight_bytes(dtype) if index == 0 else 0
        return weights + makes * cross + first, makes
    if not any(each.encoder_layers for each in layout.stages):
        weights -= stage.layers * cross
    if index == last == 0:
        weights += model.outside_weight_bytes(dtype)
    elif index == 0:
        weights += model.embedding_weight_bytes(dtype)
    elif index == last:
        weights += model.head_weight_bytes(dtype)
    return weights, stage.layers


def _activation_bytes(model: ModelSpec, dtype: str) -> int:
    """Of one packed token while a layer computes, on one device: its rows in, between and out."""
    numbers = 4 * model.hidden + 2 * model.ffn + 3 * model.num_heads * model.head_dim
    return numbers * model.layer_weight_bytes(dtype) // model.layer_parameters
