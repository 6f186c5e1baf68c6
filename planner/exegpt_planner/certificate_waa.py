"""WAA's schedules on pairs of sides, for checking a certificate: those that no bound settles.

To have more throughput than X each of y decoders must serve X' = X E[D] / y tokens a second. Little's law and lines
A + B n below a round, which the simulator keeps to (simulator/decoder_costs.py), then ask for

    a mean round of   T >= A / (1 - B X'),   a pool of   q >= X' T

that memory must hold, and for encoders with x B_E / tau_E >= X; the mean latency is at least the first token's at such
a B_E and (s - 1) T, less what a last round lacks. Each side is reckoned alone, so that of many pairs only sums of two
numbers are taken. Of pairs that are left each B_E is held to the same with the pair's own simulator, and then simulated
whole: one pass over the law of the pool gives every B_D.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from exegpt_planner import memory
from exegpt_planner.certificate_spaces import SAME, Point, Question
from exegpt_planner.expectation import add
from exegpt_planner.proof import Corners
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.costs import COVERED_SDS, hand_over_of
from exegpt_planner.simulator.decoder_costs import DecoderCosts
from exegpt_planner.simulator.encodes import EncodeTimes
from exegpt_planner.simulator.limits import held_s
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.waa import ROOM
from exegpt_planner.waa_pairs import Group

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


class Waa:
    """All schedules on a pair."""

    def __init__(self, asked: Question, number: int) -> None:
        self.asked, self.simulated = asked, 0
        encoders, decoders = asked.pairs.sides(number)
        self.units = decoders.units
        self.rooms = float(encoders.room.kv_tokens), float(decoders.room.kv_tokens)
        self.model = asked.pairs.model(encoders, decoders)
        self.whole: Corners = 1, self.model.max_batch, 1, self.model.widest_pool
        batches = np.arange(1.0, self.model.max_batch + 1)
        self._encode_fits = self.model.encoder_kv_needs(batches) <= self.rooms[0]
        self._rows: dict[int, tuple[Floats, Floats]] = {}

    def fits(self, x: int, y: int) -> bool:
        """Whether the pool has places for two encodes and no needless ones, in table and memory."""
        return self.rate(x, y) > 0

    def rate(self, x: int, y: int) -> float:
        """Queries/s; 0 where it does not fit."""
        rates, at = self._row(x)[0], y - ROOM * x
        return float(rates[at]) if 0 <= at < len(rates) else 0.0

    def promised_s(self, x: int, y: int) -> float:
        """What is held against the bound."""
        return held_s(self.model, (x, y), self.asked.promise, self.rate(x, y))

    def ends(self, block: Corners) -> set[Point]:
        """The least and the largest pool that fit of its first and of its last B_E."""
        x1, x2, y1, y2 = block
        found: set[Point] = set()
        for x in (x1, x2):
            pools = ROOM * x + np.flatnonzero(self._row(x)[0])
            pools = pools[(pools >= y1) & (pools <= y2)]
            found |= {(x, int(y)) for y in pools[[0, -1]]} if pools.size else set()
        return found

    def unsettled(self, block: Corners, best: float, bound_s: float) -> Iterator[Point]:
        """Schedules of the block with more throughput than `best` that keep the bound on whole answers."""
        x1, x2, y1, y2 = block
        is_bound, left_s = np.isfinite(bound_s), self.asked.promise.answer_s
        batches = np.arange(x1, min(x2, y2 // ROOM) + 1)
        if not batches.size:
            return
        for batch in batches[self._may(batches, best, is_bound)].tolist():
            rates, promises_s = self._row(batch)
            first = max(y1 - ROOM * batch, 0)
            part = slice(first, max(y2 - ROOM * batch + 1, 0))
            self.simulated += len(rates[part])
            better = rates[part] > best
            if is_bound:
                better &= promises_s[part] <= left_s
            for at in np.flatnonzero(better).tolist():
                yield batch, ROOM * batch + first + at

    def _row(self, batch: int) -> tuple[Floats, Floats]:
        """(queries/s, 0 where it does not fit, what is promised of whole answers), from a pool of two encodes on."""
        found = self._rows.get(batch)
        if found is None:
            found = self._rows[batch] = self._simulated(batch)
        return found

    def _simulated(self, batch: int) -> tuple[Floats, Floats]:
        model, promise = self.model, self.asked.promise
        most = min(model.row(batch).most, self.whole[3])
        pools = np.arange(float(ROOM * batch), most + 1)
        if not pools.size or not self._encode_fits[batch - 1]:
            return np.zeros(len(pools)), np.full(len(pools), np.inf)
        state = model.at(batch, pools)
        fits = (model.edges(batch, state) <= 1) & (model.kv_needs(batch, state) <= self.rooms[1])
        mean_s = model.latency_means_s(batch, pools, state, promise.length)
        if promise.sds > 0:
            mean_s = mean_s + promise.sds * model.latency_sds_s(batch, state, promise.length)
        promised_s = np.where(fits, mean_s * (1 + promise.error), np.inf)
        return np.where(fits, state.queries_per_s, 0.0), promised_s

    def _may(self, batches: Ints, best: float, is_bound: bool) -> Bools:
        """Whether any pool with these B_E may fit, beat `best` and keep the bound."""
        model, promise = self.model, self.asked.promise
        may = self._encode_fits[batches - 1].copy()
        if best == 0:
            return may
        encoders, costs = model.encoders, model.decoders
        asked = best * (1 - SAME)
        may &= model.split[0] * batches / encoders.interval_s[batches] >= asked
        served = np.array(asked * costs.decode_mean / model.split[1])
        round_s = float(costs.least_at_s(served))
        if not np.isfinite(round_s):
            return np.zeros(len(batches), dtype=np.bool_)
        held = asked / model.split[1] * encoders.pass_s[batches]
        may &= _need(costs, served * round_s + (batches - 1) / 2, held, self.asked) <= self.rooms[1]
        if is_bound:
            first_s = encoders.own_passes_s(promise.length)[batches - 1]
            after_s = encoders.exposed_s[batches] + _decode_s(costs, round_s, promise.length)
            mean_s = first_s + (after_s if promise.length > 1 else 0.0)
            may &= mean_s * (1 - SAME) <= promise.answer_s / (1 + promise.error)
        return may


def _need(costs: DecoderCosts, queries: Floats, held: Floats, asked: Question) -> Floats:
    """KV tokens of a decoder with so many in decode and in encode, and room for activations, at least."""
    prompts = asked.prompts
    tokens = queries * costs.context + held * prompts.tokens
    var = queries * costs.context_var + held * prompts.tokens_var
    return memory.needs(tokens, var, queries + held)


def _decode_s(costs: DecoderCosts, round_s: float, length: int) -> float:
    """Of an answer after its first token, in such rounds, at least."""
    fewer, lacking_s = costs.whole_iterations
    return (length - 1 - fewer) * round_s - lacking_s


def left(asked: Question, best: float) -> Bools:
    """Of every pair: whether sides alone leave a schedule with more throughput than `best` within the bound."""
    sides, found = _Sides(asked, best * (1 - SAME)), [np.zeros(0, dtype=np.bool_)]
    promise = asked.promise
    most_s = promise.answer_s / (1 + promise.error) * (1 + SAME)
    for group in asked.pairs.groups:
        e, d = group.pairs
        is_first = (group.encoders.first[:, None] & group.decoders.last)[e, d]
        size = group.encoders.sides[0].units * group.encoders.sides[0].layout.devices
        apart = asked.pairs.devices - size
        seconds = [
            sides.encode_s(group, start)[e] + sides.decode_s(group, behind)[d]
            for start, behind in ((0, size), (apart, 0))
        ]
        least_s = np.where(is_first, *seconds)
        found.append(np.isfinite(least_s) & (least_s <= most_s))
    return np.concatenate(found)


class _Sides:
    """What each side takes of the latency at least, where the pair has a throughput; infinite where it cannot."""

    def __init__(self, asked: Question, asked_per_s: float) -> None:
        self._asked, self._per_s = asked, asked_per_s
        self._handed: dict[tuple[str, float], tuple[Floats, Floats]] = {}
        self._encodes: dict[tuple[object, ...], EncodeTimes] = {}
        self._decodes: dict[tuple[object, ...], DecoderCosts] = {}

    def encode_s(self, group: Group, start: int) -> Floats:
        """By encoders: to the first token and the hand-over."""
        half = group.encoders
        lies = half.first if start == 0 else half.last
        receivers = {each.layout.mean_degree for each in group.decoders.sides}
        return np.array(
            [
                self._first_s(each, start, receivers) if ok else np.inf
                for each, ok in zip(half.sides, lies, strict=True)
            ]
        )

    def decode_s(self, group: Group, start: int) -> Floats:
        """By decoders: the rest of the answer."""
        half = group.decoders
        lies = half.first if start == 0 else half.last
        return np.array(
            [
                self._after_s(each, start) if ok else np.inf
                for each, ok in zip(half.sides, lies, strict=True)
            ]
        )

    def _first_s(self, side: Shape, start: int, receivers: set[float]) -> float:
        asked, length = self._asked, self._asked.promise.length
        pipeline = asked.pairs.pipeline(side, start)
        most = int(side.room.kv_tokens / asked.law.workload.input.mean) + 1
        encodes = self._encodes_on(pipeline, most)
        end = min(encodes.max_batch, most)
        if end < 1:
            return np.inf
        part, number = slice(1, end + 1), pipeline.num_stages
        degree = side.layout.mean_degree
        sent_s, slope_s = (each[:end] for each in self._curve("sent", degree, end))
        pass_s = encodes.times.pass_s[part] + sent_s
        slowest_s = encodes.times.slowest_s[part] + sent_s / number
        interval_s = np.maximum(slowest_s, pass_s / number) + pipeline.whole.dispatch_s
        batches = np.arange(1.0, end + 1)
        feeds = side.units * batches / interval_s >= self._per_s
        feeds &= _encode_need(asked, pipeline, batches) <= side.room.kv_tokens
        excess = encodes.own_input(length)[0] - asked.prompts.tokens
        first_s = encodes.own(length).pass_s[:end] + sent_s + excess * slope_s
        if length > 1:
            ways = {min(degree, each) for each in receivers}
            exposed = [self._curve("exposed", each, end)[0][:end] for each in ways]
            first_s = first_s + np.min(exposed, axis=0)
        return float(np.min(first_s[feeds], initial=np.inf))

    def _encodes_on(self, pipeline: Pipeline, most: int) -> EncodeTimes:
        asked, reach = self._asked, 1 << most.bit_length()  # shared by sides of about as much room
        key = pipeline.whole, pipeline.stages, reach
        found = self._encodes.get(key)
        if found is None:
            found = EncodeTimes(pipeline, asked.law.workload, asked.prompts, reach)
            self._encodes[key] = found
        return found

    def _curve(self, name: str, degree: float, end: int) -> tuple[Floats, Floats]:
        """(mean s, slope) of a curve of the hand-over, by B_E from 1 to `end` at least."""
        found = self._handed.get((name, degree))
        if found is None or len(found[0]) < end:
            curve = add([(1.0, getattr(hand_over_of(self._asked.table, degree), name))])
            prompts, batches = self._asked.prompts, np.arange(1.0, 2 * end + 1)
            law = batches * prompts.tokens, np.sqrt(batches * prompts.tokens_var)
            found = self._handed[name, degree] = curve.mean(*law), curve.slope_mean(*law)
        return found

    def _after_s(self, side: Shape, start: int) -> float:
        asked, pipeline = self._asked, self._asked.pairs.pipeline(side, start)
        key = pipeline.whole, pipeline.stages, pipeline.micro_batches
        costs = self._decodes.get(key)
        if costs is None:  # lines are of all pools, times are not asked for
            costs = self._decodes[key] = DecoderCosts(pipeline, asked.law, 1)
        served = np.array(self._per_s * costs.decode_mean / side.units)
        round_s = float(costs.least_at_s(served))
        if not np.isfinite(round_s):
            return np.inf
        queries = served * round_s
        need = _need(costs, queries, np.zeros(1), asked)
        need = need + pipeline.activation_tokens * queries / pipeline.micro_batches
        if need[0] > side.room.kv_tokens:
            return np.inf
        length = asked.promise.length
        return _decode_s(costs, round_s, length) if length > 1 else 0.0


def _encode_need(asked: Question, pipeline: Pipeline, batches: Floats) -> Floats:
    """KV tokens of an encode, and room for its activations."""
    prompts = asked.prompts
    tokens, var = batches * prompts.tokens, batches * prompts.tokens_var
    packed = pipeline.activation_tokens * (tokens + COVERED_SDS * np.sqrt(var))
    return memory.needs(tokens, var, batches) + packed
