"""WAA's space on one pair of sides, B_E by B_D, and what no schedule in a block of it can beat.

decoder_pool.py gives all of B_D at once for a B_E, a row. A row is computed when a block is cut down to it: then
throughput and promise are known at every point, and its bounds are their extremes. Before, rows are bounded by what
encoders can feed, x B_E / tau_E, by what decoders can do within a mean latency (decoder_costs.py: Little's law and
lines below a round), and by the pool's places; latency by the encode and as many rounds of the least pool. Promises
that break `bound_s` do not count for throughput. A pool that has no places for two encodes, or more than are ever
taken, is not in the space: `shape` blocks it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from exegpt_planner import memory
from exegpt_planner.adjustment import waa_adjustment
from exegpt_planner.layout import Layout
from exegpt_planner.schedule import Prediction, Split, WaaSchedule
from exegpt_planner.search import Block, Blocked, Bounds, Point
from exegpt_planner.simulator.limits import Use, held_at_least_s, held_s, uses
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.waa import ROOM, WaaModel

BISECTIONS = 12  # of a rate that memory allows: to a four-thousandth

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Rows(Block):
    """A block that is split to single rows first: a row is computed once, whatever part of it is asked for."""

    def split(self) -> tuple[Block, Block]:
        """Two halves, of the rows if there are several."""
        if self.x2 > self.x1:
            cut = (self.x1 + self.x2) // 2
            return Rows(self.x1, cut, self.y1, self.y2), Rows(cut + 1, self.x2, self.y1, self.y2)
        cut = (self.y1 + self.y2) // 2
        return Rows(self.x1, self.x2, self.y1, cut), Rows(self.x1, self.x2, cut + 1, self.y2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rooms:
    """KV tokens that fit beside the weights."""

    encoder: float
    decoder: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Row:
    """All schedules of a B_E, at pools from `first` on."""

    first: int  # B_D
    reachable: Bools  # covered by the profile
    open: Bools  # and in memory
    throughput: Floats  # 0 where not open
    promised_s: Floats  # inf where not open


class WaaSpace:
    """B_E from 1 to what the profile covers, B_D from 1 to what is ever taken."""

    strategy = "WAA"
    axes = ("encode_batch", "pool")
    few = 0

    def __init__(self, model: WaaModel, promise: Promise, rooms: Rooms) -> None:
        self.model = model
        self.promise = promise
        self.rooms = rooms
        self.kv_capacity = rooms.decoder
        self.split: Split | None = model.split
        self._rows: dict[int, _Row] = {}
        batches = np.arange(1.0, model.max_batch + 1)
        self._encode_fits = model.encoder_kv_needs(batches) <= rooms.encoder
        self._widest = model.widest_pool
        most, least_s = _row_bounds(model, promise, rooms)
        self._most = np.where(self._encode_fits, most, 0.0)
        self._least_s = np.where(self._encode_fits, least_s, np.inf)

    @property
    def whole(self) -> Block:
        return Rows(1, len(self._most), 1, self._widest)

    @property
    def smallest(self) -> Point:
        return 1, ROOM

    def blocked(self, point: Point) -> Blocked | None:
        return self._blocked(*point, point[1])

    def throughput(self, point: Point) -> float:
        row = self._row(point[0])
        return float(row.throughput[point[1] - row.first])

    def promised_s(self, point: Point) -> float:
        if self.promise.limits is None or self.blocked(point) is not None:
            row = self._row(point[0])
            return float(row.promised_s[point[1] - row.first])
        return held_s(self.model, point, self.promise, self.throughput(point))

    def schedule(self, point: Point) -> WaaSchedule:
        (encoders, decoders), (batch, pool) = self.model.split, point
        instances = self.model.instances
        workload, reach = self.model.law.workload, instances.encoder.whole.per_chunk.limit
        return WaaSchedule(
            encoders=encoders,
            decoders=decoders,
            encode_batch=batch,
            pool=pool,
            micro_batches=instances.decoder.micro_batches,
            **layout_fields(instances.layouts),
            adjustment=waa_adjustment(workload, batch, reach=reach),
        )

    def predict(self, point: Point) -> Prediction:
        return self.model.predict(self.schedule(point), self.promise)

    def uses(self, point: Point) -> list[Use]:
        if self.promise.limits is None:
            return []
        rate = self.throughput(point)
        return uses(
            self.model, point, self.promise, self.promise.limits, queries_per_s=rate, units=1
        )

    def edge(self, point: Point) -> float:
        return self.model.edge(*point)

    def kv_need(self, point: Point) -> float:
        return self.model.kv_need(*point)

    def promised_for(self, point: Point, length: int) -> float:
        latency = self.model.latency(point[0], point[1], length)
        return self.promise.promised_s(latency.mean_s, latency.sd_s)

    def roughly(self, block: Block) -> None:
        """Its bounds are cheap."""

    def bound(self, block: Block) -> Bounds:
        found = self._bounds(block)
        if found.blocked is not None:
            return found
        promised_s = held_at_least_s(self.promise, found.promised_s, found.throughput)
        return Bounds(throughput=found.throughput, promised_s=promised_s)

    def _bounds(self, block: Block) -> Bounds:
        """Of throughput and of whole answers."""
        if block.x1 == block.x2:
            return self._bound_row(block)
        # pools below ROOM x B_E are in no row
        last = min(block.x2, block.y2 // ROOM)
        if last < block.x1:
            return Bounds(throughput=0.0, promised_s=np.inf, blocked="shape")
        part = slice(block.x1 - 1, last)
        if not self._encode_fits[part].any():
            return Bounds(throughput=0.0, promised_s=np.inf, blocked="memory")
        return Bounds(
            throughput=min(float(self._most[part].max()), self._by_places(block.y2)),
            promised_s=float(self._least_s[part].min()),
        )

    def _by_places(self, pool: int) -> float:
        """What pools of at most so many places can do."""
        decoders = self.model.decoders
        per_s = float(decoders.most_per_s(np.array(float(pool))))
        return self.model.split[1] * per_s / decoders.decode_mean

    def _bound_row(self, block: Block) -> Bounds:
        blocked = self._blocked(block.x1, block.y1, block.y2)
        if blocked is not None:
            return Bounds(throughput=0.0, promised_s=np.inf, blocked=blocked)
        row = self._row(block.x1)
        part = slice(max(block.y1 - row.first, 0), max(block.y2 - row.first + 1, 0))
        return Bounds(
            throughput=float(row.throughput[part].max()),
            promised_s=float(row.promised_s[part].min()),
        )

    def _blocked(self, batch: int, first: int, last: int) -> Blocked | None:
        """Whether no pool of `first` to `last` is open, and why."""
        if last < ROOM * batch:
            return "shape"
        if not self._encode_fits[batch - 1]:
            return "memory"
        row = self._row(batch)
        part = slice(max(first - row.first, 0), max(last - row.first + 1, 0))
        if row.open[part].any():
            return None
        if row.open[part].size == 0:
            return "shape"
        return "memory" if row.reachable[part].any() else "coverage"

    def _row(self, batch: int) -> _Row:
        found = self._rows.get(batch)
        if found is None:
            found = self._rows[batch] = self._computed(batch)
        return found

    def _computed(self, batch: int) -> _Row:
        model, promise = self.model, self.promise
        pools = np.arange(float(ROOM * batch), min(model.row(batch).most, self._widest) + 1)
        state = model.at(batch, pools)
        reachable = model.edges(batch, state) <= 1
        fits = model.kv_needs(batch, state) <= self.rooms.decoder
        is_open = reachable & fits
        mean_s = model.latency_means_s(batch, pools, state, promise.length)
        kept_s = mean_s
        if promise.sds > 0:
            kept_s = mean_s + promise.sds * model.latency_sds_s(batch, state, promise.length)
        return _Row(
            first=ROOM * batch,
            reachable=reachable,
            open=is_open,
            throughput=np.where(is_open, state.queries_per_s, 0.0),
            promised_s=np.where(is_open, kept_s * (1 + promise.error), np.inf),
        )


def layout_fields(layouts: tuple[Layout, Layout] | None) -> dict[str, Layout]:
    """How a schedule says what its instances are; None: devices that hold the whole model, which it leaves out."""
    if layouts is None:
        return {}
    encoder, decoder = layouts
    if encoder == decoder:
        return {"layout": encoder}
    return {"encoder_layout": encoder, "decoder_layout": decoder}


def _row_bounds(model: WaaModel, promise: Promise, rooms: Rooms) -> tuple[Floats, Floats]:
    """By B_E: (queries/s that no pool within the bound exceeds, s that none promises less than)."""
    encoders, decoders = model.encoders, model.decoders
    batches = np.arange(1.0, model.max_batch + 1)
    fed = model.split[0] * batches / encoders.interval_s[1:]
    most = np.minimum(fed, _by_memory(model, rooms.decoder, fed))
    alone_s = encoders.own_passes_s(promise.length)
    d = promise.length - 1
    if d == 0:
        return most, alone_s * (1 + promise.error)
    fewer, lacking_s = decoders.whole_iterations
    before_s = alone_s + encoders.exposed_s[1:] - lacking_s
    least_s = decoders.least_at_s(np.zeros(1))[0]
    left_s = promise.answer_s / (1 + promise.error) - before_s
    rounds = d - fewer
    within = decoders.most_within(np.maximum(left_s, 0.0) / max(rounds, 1))
    capacity = model.split[1] / decoders.decode_mean * within
    if rounds:
        most = np.minimum(most, capacity)
    return most, (before_s + rounds * least_s) * (1 + promise.error)


def _by_memory(model: WaaModel, kv_capacity: float, fed: Floats) -> Floats:
    """By B_E: queries/s, at most those fed, for which the KV of the pool and of what is in encode has room.

    The least mean pool for a rate is Little's; from then on everything held grows with the rate.
    """
    decoders, encoders, prompts = model.decoders, model.encoders, model.prompts
    batches = np.arange(1.0, len(fed) + 1)
    per_decoder = decoders.decode_mean / model.split[1]

    def fits(rate: Floats) -> Bools:
        decoded = rate * per_decoder
        with np.errstate(invalid="ignore"):
            pool = decoded * decoders.least_at_s(decoded)
        held = rate / model.split[1] * encoders.pass_s[1:]
        queries = pool + (batches - 1) / 2
        tokens = queries * decoders.context + held * prompts.tokens
        var = queries * decoders.context_var + held * prompts.tokens_var
        need = memory.needs(tokens, var, queries + held)
        return np.asarray((need <= kv_capacity) & (pool <= decoders.n[-1]))

    low, high = np.zeros(len(fed)), fed
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        inside = fits(middle)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.where(fits(fed), fed, high)
