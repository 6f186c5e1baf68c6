"""The errors exegpt raises on purpose, by what the caller can do about them.

    ExeGPTError
    ├── InvalidSpec           an input is wrong: correct it (all its problems are listed at once)
    │   └── UnsupportedModel  the model needs something the engine does not compute exactly
    ├── IncompleteProfile     the profile table does not cover what is asked: profile more
    ├── InfeasibleBound       no schedule meets the bound: relax it or add devices
    │   └── ModelTooLarge     the weights leave no room for KV
    └── Unavailable           something outside failed (file, port, disk, network): fix it and retry

Each message says what happened, with which values, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exegpt_planner.schedule import Reached


class ExeGPTError(Exception):
    """Base of every error that is the user's to act on; printed without a stack trace."""

    exit_code = 1


class InvalidSpec(ExeGPTError):
    """An input is wrong. `problems` holds every fault found in it, in reading order."""

    exit_code = 2

    def __init__(self, source: str, problems: Sequence[str]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__(f"{source}: " + "; ".join(self.problems))


class UnsupportedModel(InvalidSpec):
    """The model asks for something the engine does not compute exactly."""


class IncompleteProfile(ExeGPTError):
    """The profile table does not cover what is asked of it."""

    exit_code = 3


class InfeasibleBound(ExeGPTError):
    """No schedule meets the bound; the message names the best reachable one and what binds."""

    exit_code = 4

    def __init__(self, message: str, *, reached: Reached | None = None) -> None:
        super().__init__(message)
        self.reached = reached  # the least that could be promised; None where nothing fits


class ModelTooLarge(InfeasibleBound):
    """The weights leave no room for KV on a device, whatever the bound."""


class Unavailable(ExeGPTError):
    """Something outside exegpt failed: a file, a port, a disk, a network."""

    exit_code = 5
