"""A profile table's curves, summed by what they are functions of, in the form expectations need.

decode step: per_query(n) + per_context(context) + decode_fixed_s
encode step: per_token(tokens) + per_chunk(chunks) + per_pair(pairs) + encode_fixed_s
mixed step:  its tokens are packed, so the token curve is met once, at decode queries + encode tokens;
             per_token + queries_only + per_context + chunks_only + per_pair + per_sampled + mixed_fixed_s
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.errors import IncompleteProfile
from exegpt_planner.expectation import Hinges, add, on_counts
from exegpt_planner.layout import Bill
from exegpt_planner.profile_table import (
    Curve,
    HandOverCurves,
    ProfileTable,
)

Floats = NDArray[np.float64]
Part = tuple[float, Curve]  # so many times a curve

COVERED_SDS = 3.0  # a schedule's sums must lie in the table up to mean + 3 sd


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepCosts:
    """Seconds of a step by its sums, all layers and what lies outside them together."""

    per_query: Hinges  # of a decode step that encodes nothing: tokens = queries = sampled
    per_context: Hinges
    per_token: Hinges
    per_chunk: Hinges  # of an encode step that decodes nothing and samples once a chunk
    per_pair: Hinges
    chunks_only: Hinges  # without the sampling
    queries_only: Hinges  # without the tokens and the sampling
    per_sampled: Hinges
    decode_fixed_s: float  # of a step that only decodes
    encode_fixed_s: float  # of a step that only encodes
    mixed_fixed_s: float
    dispatch_s: float


def costs_of(table: ProfileTable) -> StepCosts:
    """Of a step through the whole model on one device."""
    return step_costs(table, _one_device(table))


def step_costs(table: ProfileTable, bill: Bill) -> StepCosts:
    """Of a step through what the bill names, each item as often as it says.

    An encoder-decoder model encodes in the encoder's layers and decodes in the others; there is no mixed step then, and
    an encode samples nothing.
    """
    parts = _parts(table, bill)
    _add_none(parts, table)
    is_apart = table.encoder is not None
    fixed_s = bill["pass", 1] * table.step_overhead_s
    sampled = parts["sampled"] or [(0.0, table.outside.sampled)]
    decode, encode = ("decode_queries", "decode_context"), ("encode_chunks", "encode_pairs")
    return StepCosts(
        per_query=on_counts(add([*parts["tokens"], *parts["decode_queries"], *sampled])),
        per_context=add(parts["decode_context"]),
        per_token=on_counts(add(parts["encode_tokens"])),
        per_chunk=add([*parts["encode_chunks"], *([] if is_apart else sampled)]),
        per_pair=add(parts["encode_pairs"]),
        chunks_only=add(parts["encode_chunks"]),
        queries_only=add(parts["decode_queries"]),
        per_sampled=add(sampled),
        decode_fixed_s=fixed_s + (0.0 if is_apart else _at_zero_s(parts, encode)),
        encode_fixed_s=fixed_s + (0.0 if is_apart else _at_zero_s(parts, decode)),
        mixed_fixed_s=fixed_s,
        dispatch_s=table.dispatch_s,
    )


def _one_device(table: ProfileTable) -> Bill:
    bill = Counter({("layer", 1): table.num_layers})
    bill.update([("embedding", 1), ("head", 1), ("pass", 1)])
    if table.encoder is not None:
        bill["encoder_layer", 1] = table.encoder.num_layers
    return bill


def _parts(table: ProfileTable, bill: Bill) -> dict[str, list[Part]]:
    """The bill's curves by the sum of a step that they are functions of; the tokens of decodes and of encodes apart."""
    parts: dict[str, list[Part]] = defaultdict(list)
    both = ("tokens", "encode_tokens")
    for (what, degree), number in bill.items():
        on = table.on(degree)
        if what == "layer":
            parts["tokens"] += [(number, curve) for curve in (on.layer.tokens, *on.sync)]
            parts["decode_queries"].append((number, on.layer.decode_queries))
            parts["decode_context"].append((number, on.layer.decode_context))
        if what == ("layer" if table.encoder is None else "encoder_layer"):
            layer = on.encode_layer
            parts["encode_tokens"] += [(number, curve) for curve in (layer.tokens, *on.sync)]
            parts["encode_chunks"].append((number, layer.encode_chunks))
            parts["encode_pairs"].append((number, layer.encode_pairs))
        elif what == "embedding":
            for name in both:
                parts[name].append((number, on.outside.tokens))
        elif what == "head":
            parts["sampled"].append((number, on.outside.sampled))
        elif what in ("send_inside", "send_between"):
            assert table.parallel is not None, "stages that send are of a table that says how long"
            for name in both:
                parts[name].append((number, getattr(table.parallel, what)))
    return parts


def _add_none(parts: dict[str, list[Part]], table: ProfileTable) -> None:
    """What an instance of one side alone never passes through costs nothing, whatever the step."""
    layer = table.on(1).encode_layer
    for name, curve in (
        ("tokens", table.layer.tokens),
        ("encode_tokens", layer.tokens),
        ("decode_queries", table.layer.decode_queries),
        ("decode_context", table.layer.decode_context),
        ("encode_chunks", layer.encode_chunks),
        ("encode_pairs", layer.encode_pairs),
    ):
        if not parts[name]:
            parts[name].append((0.0, curve))


def _at_zero_s(parts: dict[str, list[Part]], names: Iterable[str]) -> float:
    return float(sum(weight * curve(0) for name in names for weight, curve in parts[name]))


def hand_over_of(
    table: ProfileTable, sender: float = 1, receiver: float | None = None
) -> HandOverCurves:
    """The table's hand-over times between groups of so many devices, each of which sends its share of the KV.

    Raises `IncompleteProfile` if the table holds none.
    """
    found = table.hand_over
    if found is None:
        raise IncompleteProfile(
            "the profile holds no times of handing over KV, without which WAA cannot be predicted. "
            "Profile two workers or more."
        )
    receiver = sender if receiver is None else receiver
    return found if sender == receiver == 1 else found.between(sender, receiver)
