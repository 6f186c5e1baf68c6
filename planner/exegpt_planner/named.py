"""Looking up what has a name: an unknown one is an error that lists the nearest and all."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from exegpt_planner.errors import InvalidSpec

T = TypeVar("T")


def named(values: Mapping[str, T], name: str, *, what: str) -> T:
    """The value of this name; raises `InvalidSpec` about `what` that lists the names there are."""
    if name in values:
        return values[name]
    near = difflib.get_close_matches(name.lower(), values, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise InvalidSpec(what, [f"{name!r} is not known; {hint}known: {', '.join(values)}"])
