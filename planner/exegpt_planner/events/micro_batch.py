"""A micro-batch of RRA or of static batching: whole prompts join its pool, which is decoded when its turn comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from exegpt_planner.events.pipeline import Pipeline
from exegpt_planner.events.queries import Pool, Query, decode_shape, encode_shape
from exegpt_planner.events.records import Recorder


class MicroBatch:
    """Its pool, and when its last step leaves the last stage."""

    def __init__(self, index: int, line: Pipeline, end: Callable[[Query, float], None]) -> None:
        self.pool = Pool()
        self.ready_s = 0.0
        self._index, self._line, self._end = index, line, end

    def encode(
        self, queries: Sequence[Query], start_s: float, *, iterations: int | None = None
    ) -> None:
        """Encodes whole prompts from `start_s` on; they are computed for so many iterations, or until they end."""
        if not queries:
            return
        step = self._line.serve(start_s, encode_shape(queries), micro_batch=self._index)
        self.ready_s = max(self.ready_s, step.end_s)
        for query in queries:
            query.encode_start_s, query.first_token_s = step.start_s, step.end_s
            stay = query.iterations if iterations is None else iterations
            if stay:
                self.pool.join(query, stay)
            else:
                self._end(query, step.end_s)

    def decode(self) -> None:
        """One iteration of the pool, if anyone is in it."""
        if not self.pool.num:
            return
        step = self._line.serve(self.ready_s, decode_shape(self.pool), micro_batch=self._index)
        self.ready_s = step.end_s
        for query in self.pool.advance():
            self._end(query, step.end_s)


def iterate(parts: Sequence[MicroBatch], recorder: Recorder) -> bool:
    """One iteration of every micro-batch in turn; whether there was anyone to decode."""
    decoding = sum(part.pool.num for part in parts)
    if decoding:
        recorder.iteration(decoding)
    for part in parts:
        part.decode()
    return decoding > 0
