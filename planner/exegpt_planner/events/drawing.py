"""A timeline as one SVG file that needs nothing else: a row a stage, a box an interval, what it is under the pointer.

Where there are several micro-batches boxes carry their numbers, if they fit. Colours are light or dark as the viewer's.
"""

from __future__ import annotations

import math
from xml.etree.ElementTree import Element, SubElement, indent, tostring

from exegpt_planner.events.timeline import Interval, Timeline

WIDTH, LEFT, RIGHT = 1200, 140, 20
ROW, GAP, TOP, BOTTOM = 26, 6, 74, 44
LABEL_WIDTH = 14  # a box's, to carry a number
TICKS = 10  # at most

STYLE = """
svg { background: #ffffff; font: 12px system-ui, sans-serif; }
text { fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; }
.axis { stroke: #8c959f; stroke-width: 1; }
.number { text-anchor: middle; fill: #ffffff; font-size: 10px; pointer-events: none; }
.tick { text-anchor: middle; }
.encode { fill: #bc4c00; }
.decode { fill: #0969da; }
.mixed { fill: #8250df; }
.idle { fill: #eaeef2; }
.odd { fill-opacity: 0.78; }
rect { stroke: #ffffff; stroke-width: 0.5; }
@media (prefers-color-scheme: dark) {
  svg { background: #0d1117; }
  text { fill: #e6edf3; }
  .idle { fill: #21262d; }
  rect { stroke: #0d1117; }
}
"""
KINDS = {
    "encode": "encode",
    "decode": "decode",
    "mixed": "encode and decode in one step",
    "idle": "idle",
}


def svg(shown: Timeline, title: str) -> str:
    """The drawing as text."""
    rows = shown.rows
    height = TOP + len(rows) * (ROW + GAP) + BOTTOM
    root = Element(
        "svg",
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {height}",
        role="img",
    )
    SubElement(root, "title").text = title
    SubElement(root, "style").text = STYLE
    _text(root, LEFT, 24, title, "title")
    _legend(root, [kind for kind in KINDS if any(each.kind == kind for each in shown.intervals)])
    scale = (WIDTH - LEFT - RIGHT) / shown.duration_s
    for index, (instance, stage) in enumerate(rows):
        middle = TOP + index * (ROW + GAP) + ROW / 2 + 4
        _text(root, 8, middle, f"{shown.instances[instance]}, stage {stage + 1}")
    boxes = SubElement(root, "g")
    is_numbered = any(each.micro_batch for each in shown.intervals)
    for each in shown.intervals:
        y = TOP + rows.index((each.instance, each.stage)) * (ROW + GAP)
        width = _box(boxes, each, y, scale)
        if is_numbered and each.micro_batch is not None and width >= LABEL_WIDTH:
            x = LEFT + each.start_s * scale + width / 2
            _text(boxes, x, y + ROW / 2 + 4, str(each.micro_batch + 1), "number")
    _axis(root, shown.duration_s, scale, height - BOTTOM)
    indent(root)
    return tostring(root, encoding="unicode") + "\n"


def _text(parent: Element, x: float, y: float, words: str, style: str = "") -> None:
    element = SubElement(parent, "text", x=f"{x:.1f}", y=f"{y:.1f}")
    if style:
        element.set("class", style)
    element.text = words


def _legend(root: Element, kinds: list[str]) -> None:
    x = float(LEFT)
    for kind in kinds:
        SubElement(root, "circle", {"cx": f"{x + 6:.1f}", "cy": "50", "r": "6", "class": kind})
        _text(root, x + 18, 54, KINDS[kind])
        x += 40 + 7 * len(KINDS[kind])


def _box(parent: Element, each: Interval, y: float, scale: float) -> float:
    """Draws an interval; its width."""
    x, width = LEFT + each.start_s * scale, (each.end_s - each.start_s) * scale
    shade = " odd" if each.micro_batch is not None and each.micro_batch % 2 else ""
    place = {"x": f"{x:.2f}", "y": f"{y:.1f}", "width": f"{width:.2f}", "height": str(ROW)}
    box = SubElement(parent, "rect", place | {"class": each.kind + shade})
    SubElement(box, "title").text = _words(each)
    return width


def _words(each: Interval) -> str:
    length = f"{(each.end_s - each.start_s) * 1e3:.3g} ms from {each.start_s * 1e3:.4g} ms"
    if each.micro_batch is None:
        return f"idle, {length}"
    work = [f"{each.queries} queries in decode"] if each.queries else []
    work += [f"{each.tokens} tokens encoded"] if each.tokens else []
    return f"{KINDS[each.kind]}, micro-batch {each.micro_batch + 1}: {', '.join(work)}; {length}"


def _axis(root: Element, duration_s: float, scale: float, y: float) -> None:
    unit, per_s = ("s", 1.0) if duration_s >= 2 else ("ms", 1e3)
    SubElement(
        root,
        "line",
        {"x1": str(LEFT), "x2": str(WIDTH - RIGHT), "y1": str(y), "y2": str(y), "class": "axis"},
    )
    step = _tick(duration_s * per_s)
    for index in range(int(duration_s * per_s / step * (1 + 1e-9)) + 1):
        x = LEFT + index * step / per_s * scale
        ends = {"x1": f"{x:.1f}", "x2": f"{x:.1f}", "y1": str(y), "y2": str(y + 5)}
        SubElement(root, "line", ends | {"class": "axis"})
        _text(root, x, y + 18, f"{index * step:g}", "tick")
    _text(root, (LEFT + WIDTH - RIGHT) / 2, y + 36, f"time, {unit}", "tick")


def _tick(span: float) -> float:
    """The least of 1, 2, 5 times a power of ten that leaves TICKS ticks at most."""
    power = 10.0 ** math.floor(math.log10(span / TICKS))
    return next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= TICKS)
