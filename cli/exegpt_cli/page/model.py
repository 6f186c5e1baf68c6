"""A page as values: sections of sentences, plots and tables, before any of it is HTML."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from exegpt_cli.page.drawing import Bars, Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What a table says, and the number behind it, exactly as in the JSON; None: words."""

    text: str
    value: float | int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows of cells, the first of each a heading; `marked` is the row of what was chosen."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    marked: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Legend:
    """A colour and what it stands for."""

    style: str
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A plot and the numbers that it shows."""

    caption: str
    plot: Curve | Bars
    table: Table
    legend: Sequence[Legend] = ()
    is_wide: bool = False  # its table matters as much: beside it, and open


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One question and its answer."""

    name: str
    title: str
    sentences: Sequence[str] = ()
    figures: Sequence[Figure] = ()
    tables: Sequence[Table] = ()  # shown as they are
    points: Sequence[str] = ()  # of a list


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A number in large letters."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """All of it."""

    title: str
    lead: str
    facts: Sequence[Fact]
    sections: Sequence[Section]
    is_feasible: bool


def number(value: float | int | None, digits: int = 4, unit: str = "") -> Cell:
    """A cell of a number; of nothing where there is none."""
    if value is None:
        return Cell(text="–")
    text = f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.{digits}g}"
    return Cell(text=f"{text}{unit}", value=value)


def share(value: float | None) -> Cell:
    """A cell of a share in percent."""
    return Cell(text="–") if value is None else Cell(text=f"{value:.1%}", value=value)


def text(words: str) -> Cell:
    """A cell of words."""
    return Cell(text=words)
