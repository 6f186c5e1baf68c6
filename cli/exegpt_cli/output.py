"""Where text goes: answers on stdout, progress and errors on stderr, so that `-o json` can be piped.

Nothing else in the command line prints; a rich console is made when it is first needed.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from exegpt_planner.errors import ExeGPTError, InvalidSpec, Unavailable

if TYPE_CHECKING:
    from rich.console import Console

MAX_PROBLEMS = 15  # what fits one screen


class Format(StrEnum):
    """How a command answers."""

    TEXT = "text"
    JSON = "json"


class PageFormat(StrEnum):
    """How a command answers that can write a page."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"


class Report(Protocol):
    """Called with what is done so far, of how much (0: unknown), and what is going on."""

    def __call__(self, done: float, total: float, doing: str = "") -> None: ...


def console(*, err: bool = True) -> Console:
    """A console on stderr, or on stdout for a command's answer."""
    from rich.console import Console

    return Console(stderr=err, highlight=False)


def say(text: str) -> None:
    """One line of progress on stderr."""
    console().print(text, markup=False, soft_wrap=True)


def answer(text: str) -> None:
    """A command's answer on stdout."""
    sys.stdout.write(text if text.endswith("\n") else text + "\n")
    sys.stdout.flush()


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on stdout: the first column is text, the others are figures."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    console(err=False).print(table, markup=False)


def check_writable(path: Path, option: str) -> None:
    """Raises `Unavailable` when `option`'s file could not be written: before the long work. Changes no file."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        return  # a pipe's reader would take the end of a trial for the end of the text
    was_there = os.path.lexists(path)
    try:
        path.open("ab").close()
    except OSError as error:
        raise Unavailable(
            f"cannot write {option} {path}: {error.strerror}. "
            "Choose another file, or make its folder and grant write permission."
        ) from None
    if not was_there:
        path.unlink()


def fail(error: ExeGPTError) -> int:
    """Print what happened and what to do, on one screen and without a stack trace; the exit code."""
    out = console()
    match error:
        case InvalidSpec() if len(error.problems) > 1:
            out.print(f"error: {error.source}:", style="bold red", markup=False)
            for problem in error.problems[:MAX_PROBLEMS]:
                out.print(f"  - {problem}", markup=False, soft_wrap=True)
            if len(error.problems) > MAX_PROBLEMS:
                out.print(f"  ... and {len(error.problems) - MAX_PROBLEMS} more")
        case _:
            out.print("error: ", style="bold red", end="", markup=False)
            out.print(str(error), markup=False, soft_wrap=True)
    return error.exit_code


@contextmanager
def progress(title: str) -> Iterator[Report]:
    """A progress bar on stderr while the block runs; without a terminal, a line whenever something else begins."""
    out = console()
    if not out.is_terminal:
        say(f"{title} ...")
        yield _lines()
        return
    with _bar(title, out) as report:
        yield report


def _lines() -> Report:
    said = ""

    def report(done: float, total: float, doing: str = "") -> None:
        del done, total
        nonlocal said
        if doing not in ("", said):
            said = doing
            say(f"  {doing} ...")

    return report


@contextmanager
def _bar(title: str, out: Console) -> Iterator[Report]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    words = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))
    with Progress(words, BarColumn(), TimeElapsedColumn(), console=out, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def report(done: float, total: float, doing: str = "") -> None:
            text = f"{title}\n{doing}" if doing else title
            bar.update(task, completed=done, total=total or None, description=text)

        yield report


class _Sentence(logging.Formatter):
    """A log record as a sentence with its values: "worker lost: reason=..., queries_in_flight=3"."""

    def format(self, record: logging.LogRecord) -> str:
        own = record.__dict__.keys() - _STANDARD
        values = ", ".join(f"{name}={record.__dict__[name]}" for name in sorted(own))
        text = super().format(record)
        return f"{text}: {values}" if values else text


_STANDARD = logging.makeLogRecord({}).__dict__.keys() | {"message", "asctime", "taskName"}


def log_warnings() -> None:
    """Show what exegpt's modules log from warnings up on stderr, values included."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Sentence())
    for package in ("exegpt_gateway", "exegpt_runner", "exegpt_planner"):
        logger = logging.getLogger(package)
        logger.handlers = [handler]  # also when called again
        logger.setLevel(logging.WARNING)
        logger.propagate = False
