"""Whose lengths a deployment is planned for, and what the annotations say.

    a person's or a GitOps tool's annotation > spec.workload > the detector's annotation > a conservative prior

`exegpt.dev/observed-input` and `exegpt.dev/observed-output` hold `mean=147.2,std=70.1[,max=320][,n=5000]` in tokens, or
`histogram=<ConfigMap>`. What cannot be lengths is refused whole, with every problem, and the last plan stays.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from exegpt_operator.names import DETECTOR, OBSERVED_INPUT, OBSERVED_OUTPUT
from exegpt_planner import truncation
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.manifest import Histogram, LengthSpec, WorkloadSpec

Source = Literal["Annotation", "Spec", "Observed", "Prior"]

SIDES = {"input": OBSERVED_INPUT, "output": OBSERVED_OUTPUT}
HISTOGRAM_FILE = "histogram.json"  # in the ConfigMap that an annotation names
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_FIELDS = ("mean", "std", "max", "n")
UNSTATED_MAX_SDS = 6.0  # where neither the annotation nor the spec says how long lengths may get


class Malformed(InvalidSpec):
    """An annotation that is no law of lengths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """What an annotation says in numbers, tokens."""

    mean: float
    std: float
    max: int | None = None
    num_queries: int | None = None


@dataclass(frozen=True, slots=True)
class HistogramRef:
    """An annotation that names a ConfigMap."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """The lengths that hold, and whose they are."""

    workload: WorkloadSpec | None  # None: the prior
    source: Source
    set_by: str = ""  # the field manager of the annotations


def parse(annotation: str, value: str) -> Moments | HistogramRef:
    """The value of an annotation; raises `Malformed` with all its problems."""
    parts = [part.strip() for part in value.split(",")]
    pairs = [part.partition("=")[::2] for part in parts]
    if len(pairs) == 1 and pairs[0][0] == "histogram":
        if not _NAME.fullmatch(pairs[0][1]):
            raise Malformed(annotation, [f"histogram={pairs[0][1]!r} is not a ConfigMap's name"])
        return HistogramRef(pairs[0][1])
    problems: list[str] = []
    numbers: dict[str, float] = {}
    for (name, text), part in zip(pairs, parts, strict=True):
        if name not in _FIELDS:
            problems.append(f"{part!r} is not one of mean=, std=, max=, n= (or histogram= alone)")
        elif name in numbers:
            problems.append(f"{name} is given twice")
        else:
            numbers[name] = _number(name, text, problems)
    problems += [f"{name} is missing" for name in ("mean", "std") if name not in numbers]
    if problems:
        raise Malformed(annotation, problems)
    return Moments(
        mean=numbers["mean"],
        std=numbers["std"],
        max=int(numbers["max"]) if "max" in numbers else None,
        num_queries=int(numbers["n"]) if "n" in numbers else None,
    )


def _number(name: str, text: str, problems: list[str]) -> float:
    least = 1 if name in ("max", "n") else 0
    try:
        value = int(text) if name in ("max", "n") else float(text)
    except ValueError:
        problems.append(f"{name}={text!r} is not a {'whole ' if least else ''}number")
        return math.nan
    most = math.inf if name == "n" else truncation.LONGEST
    if not math.isfinite(value) or value < least or value > most or (name == "mean" and not value):
        problems.append(f"{name}={text} is not between {least} and {most:g} tokens")
    return value


def lengths(
    annotations: Mapping[str, str],
    managers: Mapping[str, str],
    spec: WorkloadSpec | None,
    histograms: Mapping[str, Histogram | None],
) -> Lengths:
    """The lengths that hold; raises `Malformed`.

    `managers` is who set each annotation; `histograms` the ConfigMaps that annotations name, None where one is missing.
    """
    given = {side: name for side, name in SIDES.items() if name in annotations}
    own = {side: managers.get(name) == DETECTOR for side, name in given.items()}
    if not given or (spec is not None and all(own.values())):
        return Lengths(workload=spec, source="Prior" if spec is None else "Spec")
    laws: dict[str, LengthSpec] = {}
    for side, name in given.items():
        if spec is None or not own[side]:
            laws[side] = _law(name, annotations[name], _of(spec, side), histograms)
    missing = [side for side in SIDES if side not in laws and _of(spec, side) is None]
    if missing:
        raise Malformed(
            " and ".join(given.values()),
            [f"{SIDES[side]} is needed too: neither it nor spec.workload says" for side in missing],
        )
    laws |= {side: law for side in SIDES if side not in laws and (law := _of(spec, side))}
    return Lengths(
        workload=WorkloadSpec(input=laws["input"], output=laws["output"]),
        source="Observed" if all(own.values()) else "Annotation",
        set_by=", ".join(sorted({managers.get(name, "unknown") for name in given.values()})),
    )


def _of(spec: WorkloadSpec | None, side: str) -> LengthSpec | None:
    law: LengthSpec | None = None if spec is None else getattr(spec, side)
    return law


def _law(
    annotation: str,
    value: str,
    planned: LengthSpec | None,
    histograms: Mapping[str, Histogram | None],
) -> LengthSpec:
    said = parse(annotation, value)
    if isinstance(said, HistogramRef):
        histogram = histograms.get(said.name)
        if histogram is None:
            raise Malformed(
                annotation, [f"there is no ConfigMap {said.name} with a {HISTOGRAM_FILE}"]
            )
        return LengthSpec(histogram=histogram)
    longest = said.max or (None if planned is None else planned.max)
    if longest is None:
        longest = min(truncation.LONGEST, math.ceil(said.mean + UNSTATED_MAX_SDS * said.std) + 1)
    if problem := truncation.problem(said.mean, said.std, longest):
        raise Malformed(annotation, [problem])
    return LengthSpec(mean=said.mean, std=said.std, max=longest)
