"""Work for the other workers while one is measured: what they will do beside it in serving.

In WAA one side decodes while the other encodes, and they share memory and its bandwidth: a step timed alone would come
out too fast. So steps that decode are timed beside encodes, encodes beside decodes, mixed ones beside mixed ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Literal

from exegpt_cli.profile_client import ProfileClient
from exegpt_planner.profile_design import DesignedStep

Kind = Literal["decode", "encode", "mixed"]

BESIDE: dict[Kind, Kind] = {"decode": "encode", "encode": "decode", "mixed": "mixed"}
STEPS = 4  # of usual sizes, again and again


def kind_of(step: DesignedStep) -> Kind:
    """What a step does."""
    if not step.decode_contexts:
        return "encode"
    return "mixed" if step.chunk_tokens else "decode"


def usual(steps: Sequence[DesignedStep], kind: Kind) -> list[DesignedStep]:
    """Steps of a kind around the median size; of any kind if there is none."""
    of_kind = sorted((s for s in steps if kind_of(s) == kind), key=lambda s: s.size) or list(steps)
    first = max(0, len(of_kind) // 2 - STEPS // 2)
    return of_kind[first : first + STEPS]


@asynccontextmanager
async def busy(
    companions: Sequence[ProfileClient], steps: Sequence[DesignedStep]
) -> AsyncIterator[None]:
    """While the block runs, the companions run `steps`; at its end each finishes those it is at."""
    is_over = asyncio.Event()
    tasks = [asyncio.ensure_future(_repeat(each, steps, is_over)) for each in companions]
    try:
        yield
    finally:
        is_over.set()
        await asyncio.gather(*tasks)


async def _repeat(
    companion: ProfileClient, steps: Sequence[DesignedStep], is_over: asyncio.Event
) -> None:
    seed = 0
    while not is_over.is_set():
        seed += 1
        await companion.measure(steps, warm_up=0, seed=seed)
