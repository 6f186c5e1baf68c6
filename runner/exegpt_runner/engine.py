"""The step engine: holds weights and KV, and runs iterations; whom to encode and when is the conductor's decision.

One primitive, `iterate`: these encode chunks and, if asked, one token for every query of the decode pool. Queries end
on end tokens, on max_tokens and at the context, and leave at once unless `retain_ended`. It never runs out of memory:
when KV does not fit, the youngest query (largest id) is dropped and reported, to be encoded again from its prompt and
the tokens it has so far. Chunks that were under way for a dropped query are skipped. Queries may leave as their prompts
are encoded, their KV handed on layer by layer, and arrive with their KV to be decoded here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from exegpt_runner.iteration import (
    NOTHING,
    Arrival,
    Departure,
    EncodeChunk,
    Finish,
    Iteration,
    LayerSink,
    SampledToken,
    sampled_rows,
    shape_of,
)
from exegpt_runner.kv_arena import GRANULE_TOKENS, KVArena
from exegpt_runner.layers.batch import Batch, ChunkRows
from exegpt_runner.models.model import LayerDone, Model, kv_shape, skip
from exegpt_runner.pool import Encoded, Pool
from exegpt_runner.sampler import Bools, Sampling, SamplingRows

__all__ = [
    "Arrival",
    "Departure",
    "EncodeChunk",
    "Engine",
    "Finish",
    "Iteration",
    "SampledToken",
    "Sampling",
]

_ENDLESS = Sampling(max_tokens=1 << 62, ignore_eos=True)
_FABRICATED_SCALE = 0.02  # small, yet far from the denormals that slow a CPU down


@dataclass(slots=True)
class _Encoding:
    """A query whose prompt is not yet encoded to its end."""

    sampling: Sampling
    num_generated: int
    length: int = 0


class Engine:
    """Queries' KV and one step at a time on `model`, with room for `kv_tokens` tokens of KV."""

    def __init__(self, model: Model, kv_tokens: int) -> None:
        if kv_tokens < GRANULE_TOKENS:
            raise ValueError(f"kv_tokens is {kv_tokens}; the least is {GRANULE_TOKENS}")
        self.model = model
        self._arena = KVArena(kv_shape(model.spec), kv_tokens, model.dtype)
        self._layout = self._arena.layout
        # A query alone may fill the arena, never more: then the arena is its context.
        self.context = min(model.spec.context, self._layout.capacity)
        self._pool = Pool()
        self._encoding: dict[int, _Encoding] = {}
        self._next_id = 0
        self._forget_rows()

    @property
    def active(self) -> int:
        """Queries that hold KV."""
        return len(self._layout)

    @property
    def decoding(self) -> int:
        """Queries that the next decode computes."""
        return len(self._pool)

    @property
    def kv_tokens(self) -> int:
        """KV tokens held, extents' slack included."""
        return self._layout.held

    @property
    def kv_capacity(self) -> int:
        """KV tokens there is room for."""
        return self._layout.capacity

    def drop(self, queries: Iterable[int]) -> None:
        """Frees these queries; those that are not held (any more) are ignored."""
        for query in set(queries):
            self._free(query)

    def reset(self) -> None:
        """Frees every query."""
        self.drop(list(self._layout))

    def fabricate(self, contexts: Sequence[int], *, is_encoded: bool = True) -> list[int]:
        """Queries that hold `contexts` KV tokens of small random values, for measuring; returns their ids.

        They decode and never end by themselves; with `is_encoded` false they wait for a chunk that starts there.
        """
        shape = kv_shape(self.model.spec)
        granule = torch.randn(2, shape.num_kv_heads, GRANULE_TOKENS, shape.head_dim)
        granule = (granule * _FABRICATED_SCALE).to(self.model.dtype)
        ids = list(range(self._next_id, self._next_id + len(contexts)))
        for query, context in zip(ids, contexts, strict=True):
            if not 0 < context < self.context or not self._layout.fits(query, context):
                raise ValueError(f"{contexts} KV tokens do not fit {self.kv_capacity} of the arena")
            self._arena.reserve(query, context)
            self._arena.fill(query, granule)
            self._next_id = query + 1
            if is_encoded:
                self._pool.join(
                    [Encoded(query=query, sampling=_ENDLESS, length=context, num_generated=1)]
                )
            else:
                self._encoding[query] = _Encoding(_ENDLESS, 0, context)
        self._forget_rows()
        return ids

    def join(self, arrivals: Sequence[Arrival]) -> tuple[int, ...]:
        """Takes queries with their KV into the pool; returns whom that evicted, youngest first."""
        needs = {each.encoded.query: each.encoded.length for each in arrivals}
        for query, length in needs.items():
            if query in self._layout or query in self._encoding:
                raise ValueError(f"query {query} arrives while it holds KV; drop it first")
            if not 0 < length < self.context:
                raise ValueError(
                    f"query {query} arrives with {length} KV tokens; the context is {self.context}"
                )
        evicted = self._make_room_for(needs)
        for arrival in arrivals:
            query = arrival.encoded.query
            if query not in evicted:
                for index in range(len(self._arena.layers)):
                    self._arena.write(query, index, arrival.kv(index))
                self._pool.join([arrival.encoded])
            self._next_id = max(self._next_id, query + 1)
        self._forget_rows()
        return evicted

    @torch.inference_mode()
    def iterate(
        self,
        chunks: Sequence[EncodeChunk],
        *,
        decode: bool,
        retain_ended: bool = False,
        departures: Sequence[Departure] = (),
    ) -> Iteration:
        """Encodes `chunks` and, with `decode`, computes one token of each query in the pool."""
        if not retain_ended:
            self._free_ended(self._pool.ended)
        accepted = [chunk for chunk in chunks if self._accept(chunk)]
        evicted = self._make_room(accepted, decode)
        accepted = [chunk for chunk in accepted if chunk.query in self._encoding]
        num_decode = len(self._pool) if decode else 0
        if not accepted and not num_decode:
            return Iteration(
                tokens=(), evicted=evicted, shape=NOTHING, layers_cpu_s=0.0, layers_wall_s=0.0
            )
        batch = self._pack(accepted, num_decode)
        x = self.model.embed(batch)
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        x = self.model.run_layers(x, batch, self._arena.layers, self._hand_on(accepted, departures))
        cpu_s, wall_s = time.process_time() - cpu_s, time.perf_counter() - wall_s
        sampled = sampled_rows(batch, accepted)
        x = x if len(sampled) == len(x) else x[sampled]
        logits = self.model.logits(x) if sampled else x
        tokens = self._settle(logits, accepted, num_decode, retain_ended)
        for departure in departures:
            self.drop(departure.queries)
        return Iteration(
            tokens=tokens,
            evicted=evicted,
            shape=shape_of(batch, len(sampled)),
            layers_cpu_s=cpu_s,
            layers_wall_s=wall_s,
        )

    def _accept(self, chunk: EncodeChunk) -> bool:
        """Whether to encode `chunk`: not when its query was dropped meanwhile. Raises where the order is broken."""
        query, end = chunk.query, chunk.start + len(chunk.tokens)
        if not len(chunk.tokens) or end > self.context:
            raise ValueError(
                f"query {query}: chunk of {len(chunk.tokens)} tokens from {chunk.start}; "
                f"a chunk has at least one token and ends within the context of {self.context}"
            )
        vocab = self.model.spec.vocab
        if not 0 <= min(chunk.tokens) <= max(chunk.tokens) < vocab:
            raise ValueError(f"query {query}: a token lies outside the vocabulary of {vocab}")
        if chunk.start == 0:
            if query in self._layout or query in self._encoding:
                raise ValueError(f"query {query} is begun again while it holds KV; drop it first")
            if chunk.sampling is None:
                raise ValueError(f"query {query}: the first chunk carries no sampling")
            self._encoding[query] = _Encoding(chunk.sampling, chunk.num_generated)
            self._next_id = max(self._next_id, query + 1)
        elif query not in self._encoding:
            return False
        encoding = self._encoding[query]
        if chunk.start != encoding.length:
            raise ValueError(
                f"query {query}: chunk starts at {chunk.start}, but {encoding.length} tokens are encoded"
            )
        encoding.length = end
        return True

    def _hand_on(
        self, accepted: Sequence[EncodeChunk], departures: Sequence[Departure]
    ) -> LayerDone:
        """Opens the way of those that leave; what then passes each layer's KV on."""
        ways: list[tuple[LayerSink, list[slice]]] = []
        for departure in departures:
            leaving = [chunk for chunk in accepted if chunk.query in departure.queries]
            if not leaving:
                continue  # dropped or evicted, all of them
            if partial := [chunk.query for chunk in leaving if not chunk.is_last]:
                raise ValueError(f"queries {partial} leave before their prompts are encoded")
            queries = [chunk.query for chunk in leaving]
            lengths = [self._encoding[query].length for query in queries]
            starts = [self._layout[query].start for query in queries]
            places = [slice(at, at + length) for at, length in zip(starts, lengths, strict=True)]
            ways.append((departure.open(queries, lengths), places))
        if not ways:
            return skip

        def has_kv(index: int) -> None:
            layer = self._arena.layers[index]
            for sink, places in ways:
                sink.layer(index, torch.cat([layer[:, :, place] for place in places], dim=2))

        return has_kv

    def _make_room(self, accepted: Sequence[EncodeChunk], decode: bool) -> tuple[int, ...]:
        """Reserves KV for this iteration, oldest query first; returns whom that evicted, youngest first."""
        needs = {chunk.query: self._encoding[chunk.query].length for chunk in accepted}
        if decode:
            self._refresh_rows()
            for row in np.nonzero(self._pool.lengths >= self._sizes)[0]:
                needs[self._pool.ids[row]] = int(self._pool.lengths[row]) + 1
        return self._make_room_for(needs)

    def _make_room_for(self, needs: Mapping[int, int]) -> tuple[int, ...]:
        """Reserves so many tokens for each of these, oldest first; returns whom that evicted, youngest first."""
        evicted: list[int] = []
        wanting = set(needs)
        for query, tokens in sorted(needs.items()):
            if query not in wanting:
                continue  # freed for an older one
            while not self._layout.fits(query, tokens):
                victim, is_ended = self._victim(query)
                self._free(victim)
                wanting.discard(victim)
                if not is_ended:
                    evicted.append(victim)
                if victim == query:
                    break
            # None younger may stay where an older one went.
            if evicted and query > evicted[-1]:
                self._free(query)
                evicted.append(query)
            elif query in wanting:
                self._arena.reserve(query, tokens)
                self._forget_rows()
        return tuple(sorted(evicted, reverse=True))

    def _victim(self, query: int) -> tuple[int, bool]:
        """Whom to free so that `query` may fit, and whether it has ended: these first, then the youngest."""
        ended = [
            each for each, is_over in zip(self._pool.ids, self._pool.ended, strict=True) if is_over
        ]
        return (max(ended), True) if ended else (max(query, *self._layout), False)

    def _pack(self, accepted: Sequence[EncodeChunk], num_decode: int) -> Batch:
        """The iteration's rows: decode queries, then chunks."""
        self._refresh_rows()
        pool, starts = self._pool, self._starts[:num_decode]
        tokens, positions = [pool.tokens[:num_decode]], [pool.lengths[:num_decode]]
        slots = [starts + pool.lengths[:num_decode]]
        first, runs = num_decode, []
        for chunk in accepted:
            run = ChunkRows(
                first=first,
                num_tokens=len(chunk.tokens),
                kv_start=self._layout[chunk.query].start,
                start=chunk.start,
            )
            span = np.arange(run.start, run.start + run.num_tokens)
            tokens.append(np.asarray(chunk.tokens, np.int64))
            positions.append(span)
            slots.append(run.kv_start + span)
            runs.append(run)
            first += run.num_tokens
        return Batch(
            tokens=torch.from_numpy(np.concatenate(tokens)),
            positions=torch.from_numpy(np.concatenate(positions)),
            slots=torch.from_numpy(np.concatenate(slots)),
            kv_starts=starts,
            contexts=pool.lengths[:num_decode] + 1,
            chunks=tuple(runs),
        )

    def _settle(
        self, logits: Tensor, accepted: Sequence[EncodeChunk], num_decode: int, retain_ended: bool
    ) -> tuple[SampledToken, ...]:
        """Samples, moves queries whose prompt is encoded into the pool, and frees those that end."""
        pool = self._pool
        pool.lengths[:num_decode] += 1
        done = [chunk.query for chunk in accepted if chunk.is_last]
        first = 0 if num_decode else len(pool)
        if done:
            pool.join(_encoded(query, self._encoding.pop(query)) for query in done)
            self._forget_rows()
            rows = SamplingRows(pool.samplings[first:])
        else:
            rows = self._rows
        if first == len(pool):  # unfinished chunks only
            return ()
        tokens = rows.sample(logits, pool.num_generated[first:])
        pool.tokens[first:] = tokens
        pool.num_generated[first:] += 1
        stops = rows.hit_end(tokens)
        fills = pool.lengths[first:] + 1 >= self.context
        finishes = np.where(
            stops,
            "stop",
            np.where(fills | rows.exhausted(pool.num_generated[first:]), "length", "none"),
        )
        sampled = tuple(
            SampledToken(query, token, finish)
            for query, token, finish, is_over in zip(
                pool.ids[first:],
                tokens.tolist(),
                finishes.tolist(),
                pool.ended[first:],
                strict=True,
            )
            if not is_over
        )
        pool.ended[first:] |= finishes != "none"
        if not retain_ended or (pool.ended.all() and not self._encoding):
            self._free_ended(pool.ended)
        elif fills.any():  # ended too, and there is no position left to compute
            self._free_ended(pool.lengths + 1 >= self.context)
        return sampled

    def _free(self, query: int) -> None:
        if query in self._layout:
            self._layout.release(query)
        if self._encoding.pop(query, None) is None and query in self._pool.ids:
            self._pool.keep(np.array(self._pool.ids) != query)
            self._forget_rows()

    def _free_ended(self, ended: Bools) -> None:
        """Frees the pool's rows where `ended`."""
        if ended.any():
            for row in np.nonzero(ended)[0]:
                self._layout.release(self._pool.ids[row])
            self._pool.keep(~ended)
            self._forget_rows()

    def _forget_rows(self) -> None:
        """Notes that the pool or the layout changed."""
        self._has_rows = False

    def _refresh_rows(self) -> None:
        """Rebuilds what depends on who is in the pool and where, if that changed."""
        if not self._has_rows:
            extents = [self._layout[query] for query in self._pool.ids]
            self._starts = np.array([extent.start for extent in extents], np.int64)
            self._sizes = np.array([extent.size for extent in extents], np.int64)
            self._rows = SamplingRows(self._pool.samplings)
            self._has_rows = True


def _encoded(query: int, encoding: _Encoding) -> Encoded:
    return Encoded(
        query=query,
        sampling=encoding.sampling,
        length=encoding.length,
        num_generated=encoding.num_generated,
    )
