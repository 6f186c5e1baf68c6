"""Which concurrency an engine is run at: levels first, then one between the last that keeps a bound and the first that
breaks it, then the best of them again.

Runs of one engine at one level count together: their tokens per second as the mean, their s99 answers as one sample.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engines_load import Run, p99

Clock = Literal["start", "sending"]
GAINS = (
    1.03  # tokens/s by a level over the one before it; below, more in flight is not worth trying
)
CLOSE = 1.25  # levels nearer than that are not refined further


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """An engine at one concurrency."""

    in_flight: int
    tokens_per_s: float
    num_runs: int
    num_s99: int
    p99_s: dict[Clock, float]  # a clock that the server doesn't tell is that of sending

    def keeps(self, clock: Clock, bound_s: float) -> bool:
        return clock in self.p99_s and self.p99_s[clock] <= bound_s


@dataclass(slots=True)
class Tuned:
    """What is known of one engine."""

    engine: str
    runs: list[Run] = field(default_factory=list)
    problem: str | None = None  # why it runs no further

    def levels(self) -> list[Level]:
        """By concurrency; failed runs left out."""
        by_level: dict[int, list[Run]] = {}
        for run in self.runs:
            by_level.setdefault(run.in_flight, []).append(run)
        return [level(runs) for _, runs in sorted(by_level.items())]

    def expected_s(self, in_flight: int, unknown_s: float) -> float:
        """What an s99 answer may take: it grows with the concurrency at most."""
        found = self.levels()
        if not found:
            return unknown_s
        nearest = min(found, key=lambda each: abs(each.in_flight - in_flight))
        latency_s = nearest.p99_s.get("sending", unknown_s)
        return latency_s * max(1.0, in_flight / nearest.in_flight)

    def best(self) -> Level | None:
        """The level with most throughput."""
        return max(self.levels(), key=lambda each: each.tokens_per_s, default=None)

    def best_within(self, clock: Clock, bound_s: float) -> Level | None:
        """The level with most throughput that keeps the bound."""
        kept = [each for each in self.levels() if each.keeps(clock, bound_s)]
        return max(kept, key=lambda each: each.tokens_per_s, default=None)

    def is_full(self, loosest_s: float) -> bool:
        """Whether more in flight would neither raise throughput nor keep any bound."""
        found = self.levels()
        if len(found) < 2:
            return False
        before, last = found[-2:]
        return (
            last.tokens_per_s < GAINS * before.tokens_per_s
            and last.p99_s.get("sending", 0.0) > loosest_s
        )

    def finer(self, clock: Clock, bound_s: float) -> int | None:
        """The concurrency between the last that keeps the bound and the first that breaks it."""
        found = self.levels()
        kept = [each.in_flight for each in found if each.keeps(clock, bound_s)]
        broken = [each.in_flight for each in found if not each.keeps(clock, bound_s)]
        if not broken:
            return None
        if not kept:
            return broken[0] // 2 or None
        above = [each for each in broken if each > max(kept)]
        if not above or above[0] < CLOSE * max(kept):
            return None
        return round((above[0] * max(kept)) ** 0.5)

    def winners(self, clock: Clock, bounds_s: Sequence[float]) -> Iterator[int]:
        """The concurrencies that figures rest on."""
        chosen = {best.in_flight} if (best := self.best()) else set()
        for bound_s in bounds_s:
            if kept := self.best_within(clock, bound_s):
                chosen.add(kept.in_flight)
        yield from sorted(chosen)


def level(runs: Sequence[Run]) -> Level:
    """Runs at one concurrency, together."""
    sending = [each for run in runs for each in run.from_sending_s]
    start = [each for run in runs for each in run.from_start_s] or sending
    found: dict[Clock, float | None] = {"start": p99(start), "sending": p99(sending)}
    return Level(
        in_flight=runs[0].in_flight,
        tokens_per_s=statistics.mean(run.tokens_per_s for run in runs),
        num_runs=len(runs),
        num_s99=len(sending),
        p99_s={clock: latency_s for clock, latency_s in found.items() if latency_s is not None},
    )
