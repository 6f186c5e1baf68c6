"""Curves and bars as SVG inside a page: titles and units on both axes, the chosen point marked, colours by CSS class.

Drawn here and not by a plotting library: two kinds of plot are needed, as part of a page whose style sheet gives
colours for light, dark and paper, and larger letters on a phone (docs/decisions/0016-plots-drawn-here.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element, SubElement, tostring

WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 16, 52
TICKS = 6  # about so many on an axis
WIDE = 20.0  # largest over smallest value: an axis is logarithmic from here on
ROW, BAR, BARS_TOP = 44, 16, 6
ROOM = 1.06  # above the largest value
LABEL = 34  # a segment's width, to carry its share


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A point, with what is said of it under the pointer."""

    x: float
    y: float
    title: str
    is_chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A line across the plot at one value."""

    at: float
    label: str
    is_vertical: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One curve; values are finite and x rises."""

    name: str
    x_title: str
    y_title: str
    marks: Sequence[Mark]
    rules: Sequence[Rule] = ()
    can_be_log: bool = False  # the x axis, where it spans much


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A part of a bar."""

    style: str
    value: float
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar with its label above."""

    label: str
    segments: Sequence[Segment]
    is_chosen: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Bars below each other on one axis."""

    name: str
    title: str  # of the axis
    bars: Sequence[Bar]
    shows_shares: bool = False  # of a bar's whole, in segments that have room


class _Axis:
    """Values to places, and where its ticks are."""

    def __init__(self, low: float, high: float, start: float, end: float, *, is_log: bool) -> None:
        self.low, self.high, self.is_log = low, high, is_log
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        low, high, x = self.low, self.high, value
        if self.is_log:
            low, high, x = math.log(low), math.log(high), math.log(x)
        return self._start + (x - low) / (high - low) * (self._end - self._start)

    def ticks(self) -> list[float]:
        if self.is_log:
            tens = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [digit * 10.0**power for power in tens for digit in (1, 2, 5)]
            inside = [each for each in found if self.low <= each <= self.high]
            if len(inside) > 2 * TICKS:
                inside = [each for each in inside if f"{each:e}".startswith("1")]
            return inside
        step = _step((self.high - self.low) / TICKS)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]


def _step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= rough * (1 - 1e-9))


def curve(shown: Curve) -> str:
    """The curve as an SVG element."""
    root = _root(shown.name, f"{shown.y_title} by {shown.x_title}", HEIGHT)
    x_axis, y_axis = _axes(shown)
    _grid(root, shown, x_axis, y_axis)
    for rule in shown.rules:
        _rule(root, rule, x_axis, y_axis)
    places = [(x_axis.at(mark.x), y_axis.at(mark.y)) for mark in shown.marks]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    SubElement(root, "polyline", {"class": "curve", "points": path})
    marks = sorted(zip(shown.marks, places, strict=True), key=lambda each: each[0].is_chosen)
    for mark, (x, y) in marks:
        style, radius = ("chosen", "6.5") if mark.is_chosen else ("mark", "3.2")
        dot = SubElement(
            root, "circle", {"class": style, "cx": f"{x:.1f}", "cy": f"{y:.1f}", "r": radius}
        )
        SubElement(dot, "title").text = mark.title
    return tostring(root, encoding="unicode")


def _axes(shown: Curve) -> tuple[_Axis, _Axis]:
    xs = [mark.x for mark in shown.marks] + [each.at for each in shown.rules if each.is_vertical]
    ys = [mark.y for mark in shown.marks]
    ys += [each.at for each in shown.rules if not each.is_vertical]
    low, high = min(xs), max(xs)
    is_log = shown.can_be_log and low > 0 and high / low >= WIDE
    if low == high:
        low, high = low - 1, high + 1
    x_axis = _Axis(low, high, LEFT + 8, WIDTH - RIGHT - 8, is_log=is_log)
    y_axis = _Axis(0.0, ROOM * max(ys) or 1.0, HEIGHT - BOTTOM, TOP, is_log=False)
    return x_axis, y_axis


def _grid(root: Element, shown: Curve, x_axis: _Axis, y_axis: _Axis) -> None:
    for value in y_axis.ticks():
        y = y_axis.at(value)
        _line(root, "grid", (LEFT, y), (WIDTH - RIGHT, y))
        _text(root, "tick end", LEFT - 7, y + 4, _number(value))
    for value in x_axis.ticks():
        x = x_axis.at(value)
        _line(root, "grid", (x, HEIGHT - BOTTOM), (x, HEIGHT - BOTTOM + 5))
        _text(root, "tick middle", x, HEIGHT - BOTTOM + 19, _number(value))
    _line(root, "axis", (LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM))
    _text(root, "axis-title middle", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, shown.x_title)
    middle = (TOP + HEIGHT - BOTTOM) / 2
    title = _text(root, "axis-title middle", 0, 0, shown.y_title)
    title.set("transform", f"translate(15 {middle:.1f}) rotate(-90)")


def _rule(root: Element, rule: Rule, x_axis: _Axis, y_axis: _Axis) -> None:
    if rule.is_vertical:
        x = x_axis.at(rule.at)
        _line(root, "rule", (x, TOP), (x, HEIGHT - BOTTOM))
        is_right = x > (LEFT + WIDTH) / 2
        side = -6 if is_right else 6
        _text(
            root,
            f"rule-label {'end' if is_right else ''}",
            x + side,
            HEIGHT - BOTTOM - 8,
            rule.label,
        )
    else:
        y = y_axis.at(rule.at)
        _line(root, "rule", (LEFT, y), (WIDTH - RIGHT, y))
        _text(root, "rule-label", LEFT + 6, y - 6 if y > TOP + 14 else y + 15, rule.label)


def bars(shown: Bars) -> str:
    """The bars as an SVG element."""
    height = BARS_TOP + ROW * len(shown.bars) + BOTTOM
    root = _root(shown.name, shown.title, height)
    most = max(sum(part.value for part in bar.segments) for bar in shown.bars)
    axis = _Axis(0.0, most, 8, WIDTH - RIGHT, is_log=False)
    bottom = height - BOTTOM
    for value in axis.ticks():
        x = axis.at(value)
        _line(root, "grid", (x, BARS_TOP), (x, bottom + 5))
        _text(root, "tick middle", x, bottom + 19, _number(value))
    for index, bar in enumerate(shown.bars):
        y = BARS_TOP + index * ROW + 15
        _text(root, "bar-label strong" if bar.is_chosen else "bar-label", 8, y, bar.label)
        _segments(root, bar, axis, y + 6, shows_shares=shown.shows_shares)
    _line(root, "axis", (8, bottom), (WIDTH - RIGHT, bottom))
    _text(root, "axis-title middle", (8 + WIDTH - RIGHT) / 2, height - 10, shown.title)
    return tostring(root, encoding="unicode")


def _segments(root: Element, bar: Bar, axis: _Axis, y: float, *, shows_shares: bool) -> None:
    done, whole = 0.0, sum(part.value for part in bar.segments)
    for part in bar.segments:
        x, width = axis.at(done), axis.at(done + part.value) - axis.at(done)
        box = SubElement(
            root,
            "rect",
            {
                "class": f"{part.style} chosen" if bar.is_chosen else part.style,
                "x": f"{x:.1f}",
                "y": f"{y:.1f}",
                "width": f"{width:.2f}",
                "height": str(BAR),
            },
        )
        SubElement(box, "title").text = part.title
        if shows_shares and width >= LABEL:
            _text(
                root,
                f"share middle {part.style}",
                x + width / 2,
                y + BAR - 4,
                f"{part.value / whole:.0%}",
            )
        done += part.value


def _root(name: str, title: str, height: float) -> Element:
    root = Element(
        "svg",
        {"viewBox": f"0 0 {WIDTH} {height}", "role": "img", "data-plot": name, "aria-label": title},
    )
    return root


def _line(
    parent: Element, style: str, start: tuple[float, float], end: tuple[float, float]
) -> None:
    (x1, y1), (x2, y2) = start, end
    places = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
    SubElement(parent, "line", {"class": style} | {key: f"{at:.1f}" for key, at in places.items()})


def _text(parent: Element, style: str, x: float, y: float, words: str) -> Element:
    element = SubElement(parent, "text", {"class": style, "x": f"{x:.1f}", "y": f"{y:.1f}"})
    element.text = words
    return element


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
