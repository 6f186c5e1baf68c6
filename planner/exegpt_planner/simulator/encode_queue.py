"""CRA's encodes as a queue: prompts of freed slots wait, first in first out, for C tokens of encode a step.

Each of B_D slots frees with chance rho = 1 / (E[e] + E[D]) an iteration. A prompt's stay is
e = ceil((W + those ahead of it + I) / C), W being the tokens waiting (encode_walk.py) as its B_D - 1 companions leave
the queue (a closed network's arrival theorem); rho solves its own equation. Needs C above the load, else there is no
stationary law. What costs is the law, so it is asked for as seldom as will do:

- Where an iteration's prompts pass C with a chance below `RARE` (Chernoff's bound) nobody waits, and C does not matter.
- Between pools at which the law is solved, about a third apart in log(B_D / (1 - load)), everything is interpolated by
  cubics: for a given C all of it is analytic in B_D. Means of interpolated laws are the interpolated means.
- K - E[A] / 2 <= E[W] <= K = Var A / (2 (C - E[A])) (Kingman) bounds the stay, and so the rate, without the law.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.simulator.encode_walk import Prompts, Walk, arrivals, spread
from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]

LEAST_SLACK = 1.1  # C over the steady need: at the need itself the queue is critical
RARE = 1e-3  # a step in which C would bind; it then costs a small part of an iteration
NEVER = 1e-9  # what a law of prompts that never wait leaves out
STEP = 0.35  # of the pools that do not depend on C,
FULL_STEP = 0.3  # and of those beyond
DENSE = 5  # pools up to which each one is solved
FREE = 0.2  # load up to which the solved pools do not depend on C
FINE_TOKENS = 32  # points up to the mean prompt of what laws of tokens are kept on,
FINE_RATIO = 1.03  # and the ratio of the points beyond
BEGINS = 32  # parts of a step of where a prompt begins
LARGEST = 1 << 20  # tokens, or queries: beyond what can be
MOST_UNITS = 2048  # of a law of prompts that never wait
SETTLED = 1e-5  # relative, of rho


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodeQueues:
    """The stationary encode queues of a run of pools with one C; arrays over the pools, first to last."""

    chunk: int | None  # None: so large that nobody ever waits
    is_single: bool = False  # a step encodes one whole prompt at most: ORCA's
    pools: Floats
    completions: Floats  # rho: chance that a slot frees in an iteration
    stay: Floats  # E[e]: iterations from a slot's refill to the end of its encode
    span: Floats  # E[e']: of them, those in which it is encoded: its number of chunks
    span_var: Floats
    begins: Floats  # tokens of a step that may precede a prompt's first,
    begins_law: Floats  # (pools, begins)
    tokens: Floats  # that may be encoded in a step; C last, unless nobody ever waits
    tokens_law: Floats  # (pools, tokens)
    beside_law: (
        Floats  # the same in a step of one slot fewer: what a decoding query sees beside itself
    )

    def up_to(self, pool: int) -> EncodeQueues:
        """Those of the pools up to this one."""
        n = int(np.searchsorted(self.pools, pool, side="right"))
        if n == len(self.pools):
            return self
        each = ("pools", "completions", "stay", "span", "span_var")
        laws = ("begins_law", "tokens_law", "beside_law")
        return replace(self, **{name: getattr(self, name)[:n] for name in (*each, *laws)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Solved:
    """What is interpolated, at one pool."""

    rate: float  # prompts an iteration
    span: float
    span_var: float
    begins: Floats
    tokens: Floats  # on all points, whatever C
    beside: Floats


class QueueFamily:
    """Encode queues of one workload; pools and chunks to be asked for."""

    def __init__(self, workload: Workload) -> None:
        self._pmf = workload.input.pmf
        self._decode_mean = workload.output.mean - 1
        self._tokens = workload.input.mean
        self._longest = int(np.flatnonzero(self._pmf)[-1])
        lengths = np.arange(len(self._pmf), dtype=np.float64)
        self._square = float(lengths**2 @ self._pmf)
        self._tilts = np.linspace(0.25, 16, 32) / self._longest
        self._tilted = np.exp(np.outer(self._tilts, lengths)) @ self._pmf - 1
        self._unit = 1 << max(0, int(np.log2(self._tokens / FINE_TOKENS)))
        fine = self._unit * np.arange(FINE_TOKENS + 1)
        ratios = FINE_RATIO ** np.arange(1, int(np.log(LARGEST) / np.log(FINE_RATIO)))
        self._points = np.unique(np.append(fine, np.round(fine[-1] * ratios)))
        self._base = [*range(1, DENSE + 1), *_climb(DENSE, LARGEST, np.inf, STEP)]
        self._alone: dict[int, float] = {}
        self._prompts: dict[int, Prompts] = {}
        self._ladders: dict[int, list[int]] = {}
        self._solved: dict[tuple[int, int | None], _Solved] = {}
        self._runs: dict[tuple[int, int | None], EncodeQueues] = {}

    @property
    def num_solved(self) -> int:
        """Laws computed so far."""
        return len(self._solved)

    def alone(self, chunk: int) -> float:
        """E[ceil(I / C)]: the stay of a prompt that never waits."""
        found = self._alone.get(chunk)
        if found is None:
            chunks = -(-np.arange(len(self._pmf)) // chunk)
            found = self._alone[chunk] = float(chunks @ self._pmf)
        return found

    def need(self, pool: int) -> float:
        """The least C of a pool, `LEAST_SLACK` over the steady need B_D E[I] / E[L]."""
        return LEAST_SLACK * pool * self._tokens / (self._decode_mean + 1)

    def most(self, chunk: int) -> int:
        """The largest pool whose steady need is C at most."""
        return int(chunk / (self._tokens / (self._decode_mean + 1)))

    def rate_at_least(self, pool: int, chunk: int) -> float:
        """A lower bound on the prompts an iteration of a pool that fits."""
        rho = 1 / (self.alone(chunk) + self._decode_mean)
        return pool / (self._stays(pool, chunk, rho)[1] + self._decode_mean)

    def rate_at_most(self, pool: int, chunk: int) -> float:
        """An upper bound on the prompts an iteration of any smaller pool too; larger ones than fit do not count."""
        pool = min(pool, self._ladder(chunk)[-1])
        rho = self.rate_at_least(pool, chunk) / pool
        stay = max(self.alone(chunk), self._stays(pool, chunk, rho)[0])
        return pool / (stay + self._decode_mean)

    def _stays(self, pool: int, chunk: int, rho: float) -> tuple[float, float]:
        """Bounds on the stay at this rho, from Kingman's on the wait."""
        arriving = (pool - 1) * rho * self._tokens
        var = (pool - 1) * rho * (self._square - rho * self._tokens**2)
        least = (var / (2 * (chunk - arriving)) + self._tokens) / chunk
        return least, 1 + least + arriving / (2 * chunk)

    def queues(self, pool: int, chunk: int) -> EncodeQueues:
        """Those of the run of pools that `pool` is in; it must not need more than `chunk`."""
        ladder = self._ladder(chunk)
        run = _run(ladder, pool)
        is_free = self._is_free(run.stencil[-1], chunk) and run == _run(self._base, pool)
        key = run.low, None if is_free else chunk
        found = self._runs.get(key)
        if found is None:
            found = self._runs[key] = self._interpolated(run, None if is_free else chunk)
        return found

    def _is_free(self, pool: int, chunk: int) -> bool:
        """Whether nobody ever waits, nor is a prompt cut."""
        if chunk < self._longest:
            return False
        return pool * self._longest <= chunk or self._reach(pool, RARE) <= chunk

    def _reach(self, pool: int, chance: float) -> float:
        """Tokens that an iteration's prompts pass with a smaller chance, where none waits (Chernoff)."""
        rho = 1 / (1 + self._decode_mean)
        log_means = pool * np.log1p(rho * self._tilted)
        return float(np.min((log_means - np.log(chance)) / self._tilts))

    def _full(self, chunk: int | None) -> float:
        """The pool whose steady need is C."""
        return np.inf if chunk is None else chunk / self.need(1) * LEAST_SLACK

    def _ladder(self, chunk: int) -> list[int]:
        """Pools to solve for a C, up to the largest that it can keep up with."""
        found = self._ladders.get(chunk)
        if found is None:
            full = self._full(chunk)
            most = int(full / LEAST_SLACK * (1 + 1e-12))
            low = [p for p in self._base if p <= min(max(FREE * full, DENSE), most)]
            found = self._ladders[chunk] = [*low, *_climb(low[-1], most, full, FULL_STEP)]
        return found

    def _interpolated(self, run: _Run, chunk: int | None) -> EncodeQueues:
        solved = [self._at(pool, chunk) for pool in run.stencil]
        pools = np.arange(run.low, run.high + 1, dtype=np.float64)
        weights = _cubic(np.array(run.stencil, dtype=np.float64), pools)
        rate, span, span_var = (
            weights @ np.array([(s.rate, s.span, s.span_var) for s in solved])
        ).T
        if chunk is None:
            tokens = self._points[: max(len(s.tokens) for s in solved)]
        else:
            tokens = np.append(self._points[self._points < chunk], chunk)
        return EncodeQueues(
            chunk=chunk,
            pools=pools,
            completions=rate / pools,
            stay=pools / rate - self._decode_mean,
            span=span,
            span_var=np.maximum(span_var, 0.0),  # a cubic may pass below
            begins=np.linspace(0, chunk or 1, BEGINS + 1),
            begins_law=weights @ np.array([s.begins for s in solved]),
            tokens=tokens,
            tokens_law=weights @ np.array([_cut(s.tokens, len(tokens)) for s in solved]),
            beside_law=weights @ np.array([_cut(s.beside, len(tokens)) for s in solved]),
        )

    def _at(self, pool: int, chunk: int | None) -> _Solved:
        if chunk is not None and self._is_free(pool, chunk):
            chunk = None
        found = self._solved.get((pool, chunk))
        if found is None:
            found = self._free(pool) if chunk is None else self._solve(pool, chunk)
            self._solved[pool, chunk] = found
        return found

    def _free(self, pool: int) -> _Solved:
        rho = 1 / (1 + self._decode_mean)
        reach, unit = min(self._reach(pool, NEVER), float(pool * self._longest)), self._unit
        while reach / unit > MOST_UNITS:
            unit *= 2
        laws = [
            arrivals(self._pmf, slots, rho, unit=unit, reach=reach) for slots in (pool, pool - 1)
        ]
        tokens, beside = (self._on_points(law, unit, None) for law in laws)
        begins = np.eye(1, BEGINS + 1)[0]
        return _Solved(
            rate=pool * rho, span=1.0, span_var=0.0, begins=begins, tokens=tokens, beside=beside
        )

    def _solve(self, pool: int, chunk: int) -> _Solved:
        alone = self.alone(chunk)
        grid, num_steps = self._prompts_for(chunk).grid(pool / (alone + self._decode_mean))
        walk = partial(Walk, grid, num_steps)
        beside = self._fixed_point(walk, pool, chunk)
        whole = walk(pool, beside.rho)
        begins = beside.begins()
        at = np.arange(grid.chunk, dtype=np.float64) * (BEGINS / grid.chunk)
        return _Solved(
            rate=pool * beside.rho,
            span=max(alone + begins.chunks - grid.alone, 1.0),
            span_var=begins.chunks_var,
            begins=spread(at, begins.law, BEGINS + 1),
            tokens=self._on_points(whole.step_tokens(), grid.unit, chunk),
            beside=self._on_points(beside.step_tokens(), grid.unit, chunk),
        )

    def _fixed_point(self, solve: Callable[[int, float], Walk], pool: int, chunk: int) -> Walk:
        """The queue that B_D - 1 companions leave, at the rho that follows from it."""
        alone, decode = self.alone(chunk), self._decode_mean
        most = 1 / (alone + decode)
        rho = most
        for _ in range(3):  # a start from Kingman's bound
            rho = min(most, 1 / (self._stays(pool, chunk, rho)[1] + decode))
        while True:
            walk = solve(pool - 1, rho)
            waited = walk.waited()
            after = 1 / (alone + waited + decode)
            off = after - rho
            if abs(off) <= SETTLED * rho:
                return walk
            # about as rho / (1 - load) the wait grows
            growth = waited / (1 - (pool - 1) * rho * self._tokens / chunk) / rho
            rho = min(most, rho + off / (1 + after**2 * growth))

    def _prompts_for(self, chunk: int) -> Prompts:
        found = self._prompts.get(chunk)
        if found is None:
            found = self._prompts[chunk] = Prompts(self._pmf, chunk)
        return found

    def _on_points(self, law: Floats, unit: int, chunk: int | None) -> Floats:
        """A law of tokens on the points that all laws are kept on."""
        points = self._points
        if chunk is not None:
            points = np.append(points[points < chunk], chunk)
        at = np.interp(np.arange(len(law)) * float(unit), points, np.arange(len(points)))
        return spread(at, law, int(at[-1]) + 2 if chunk is None else len(points))


@lru_cache(maxsize=8)
def queues_of(workload: Workload) -> QueueFamily:
    """The workload's, made once: laws are shared by all shapes."""
    return QueueFamily(workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """Pools that are interpolated together, and the solved ones that this takes."""

    low: int
    high: int
    stencil: tuple[int, ...]


def _run(ladder: list[int], pool: int) -> _Run:
    """The run of `pool`: all between two solved pools; up to `DENSE` two runs, all solved."""
    last = len(ladder) - 1
    at = bisect_right(ladder, pool) - 1
    if at < DENSE - 1 or last < DENSE:
        edges = (0, 2, DENSE - 1 if last >= DENSE else DENSE)
        begin = edges[bisect_right(edges, at) - 1]
        stencil = ladder[begin : edges[bisect_right(edges, at)]]
        return _Run(low=stencil[0], high=stencil[-1], stencil=tuple(stencil))
    begin = min(at, last - 1)
    end = begin + 1
    return _Run(
        low=ladder[begin],
        high=ladder[end] if end == last else ladder[end] - 1,
        stencil=tuple(ladder[min(begin - 1, last - 3) : end + 2]),
    )


def _climb(start: int, most: int, full: float, step: float) -> list[int]:
    """Pools beyond `start`, `step` apart in log(B_D / (1 - B_D / full)), up to `most`."""
    pools, pool = [], start
    while pool < most:
        odds = np.exp(step) * pool / (1 - pool / full)
        pool = min(max(pool + 1, int(odds / (1 + odds / full))), most)
        pools.append(pool)
    return pools


def _cubic(nodes: Floats, pools: Floats) -> Floats:
    """Weights, (pools, nodes), of the cubic through the four nodes around each pool."""
    if np.array_equal(nodes, pools):
        return np.eye(len(nodes))
    first = np.clip(np.searchsorted(nodes, pools, side="right") - 2, 0, len(nodes) - 4)
    weights = np.zeros((len(pools), len(nodes)))
    rows = np.arange(len(pools))
    four = first[:, None] + np.arange(4)
    for j in range(4):
        others = np.delete(four, j, axis=1)
        own = nodes[four[:, j]][:, None]
        weights[rows, four[:, j]] = ((pools[:, None] - nodes[others]) / (own - nodes[others])).prod(
            axis=1
        )
    return weights


def _cut(law: Floats, n: int) -> Floats:
    """A law on n points, what is beyond the last one there."""
    cut = np.zeros(n)
    cut[: min(n, len(law))] = law[:n]
    cut[-1] += law[n:].sum()
    return cut
