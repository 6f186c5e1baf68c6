"""The same table with all but one kind of work taking no time.

Step times are sums of curves, so what is linear in them is the sum of what it is for each kind of work alone. Knots and
limits stay, and with them what a table covers. One step of the simulator is not linear, and may show where a curve of
counts would begin below 0 (`expectation.on_counts`): whoever splits a time compares the sum, and says nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeVar, get_args

from exegpt_planner.profile_table import Curve, LayerCurves, OutsideCurves, ProfileTable
from exegpt_planner.strict import StrictModel

Kind = Literal["matrices", "attention", "all-reduces", "sends", "embedding", "head", "steps"]
KINDS: tuple[Kind, ...] = get_args(Kind)
EXACT = 1e-6  # relative: parts that sum up to less are rounding apart from the whole

_LAYER: Mapping[str, Kind] = {
    "tokens": "matrices",
    "decode_queries": "attention",
    "decode_context": "attention",
    "encode_chunks": "attention",
    "encode_pairs": "attention",
}
_OUTSIDE: Mapping[str, Kind] = {"tokens": "embedding", "sampled": "head"}
_SENDS: Mapping[str, Kind] = {"send_inside": "sends", "send_between": "sends"}


def only(table: ProfileTable, kind: Kind) -> ProfileTable:
    """The table with nothing but this kind of work."""
    changed: dict[str, Any] = {
        "layer": _layer(table.layer, kind),
        "outside": _outside(table.outside, kind),
        "step_overhead_s": table.step_overhead_s if kind == "steps" else 0.0,
        "dispatch_s": 0.0,
    }
    if table.encoder is not None:
        layer = _layer(table.encoder.layer, kind)
        changed["encoder"] = table.encoder.model_copy(update={"layer": layer})
    if table.parallel is not None:
        degrees = tuple(
            each.model_copy(
                update={
                    "layer": _layer(each.layer, kind),
                    "outside": _outside(each.outside, kind),
                    "sync": _kept(each.sync, kind == "all-reduces"),
                    "encoder_layer": each.encoder_layer and _layer(each.encoder_layer, kind),
                }
            )
            for each in table.parallel.degrees
        )
        sends = _only(table.parallel, _SENDS, kind)
        changed["parallel"] = sends.model_copy(update={"degrees": degrees})
    return table.model_copy(update=changed)


def add_up(parts: Mapping[Kind, float], whole: float) -> bool:
    """Whether these are the whole."""
    return abs(sum(parts.values()) - whole) <= EXACT * abs(whole)


def _layer(curves: LayerCurves, kind: Kind) -> LayerCurves:
    return _only(curves, _LAYER, kind)


def _outside(curves: OutsideCurves, kind: Kind) -> OutsideCurves:
    return _only(curves, _OUTSIDE, kind)


M = TypeVar("M", bound=StrictModel)


def _only(curves: M, kinds: Mapping[str, Kind], kind: Kind) -> M:
    return curves.model_copy(
        update={name: _kept(getattr(curves, name), kinds[name] == kind) for name in kinds}
    )


def _kept(curve: Curve, is_kept: bool) -> Curve:
    return curve if is_kept else Curve(x=curve.x, seconds=(0.0,) * len(curve.x))
