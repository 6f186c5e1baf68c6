"""KV that leaves with a step and KV that joins with one: the wire's words as the engine's.

Hand-overs go out through a `Sender` while the step's layers compute; what arrives waits in a `Landing` until the
conductor says who joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from exegpt_planner.errors import InvalidSpec
from exegpt_runner.iteration import Arrival, Departure
from exegpt_runner.kv_transfer.arrived import Arrived
from exegpt_runner.kv_transfer.receiver import Landing
from exegpt_runner.kv_transfer.sender import Outgoing, Sender, Sending
from exegpt_runner.pool import Encoded
from exegpt_runner.sampler import Sampling
from exegpt_wire import worker_pb2 as pb


@dataclass(slots=True)
class Exchange:
    """The KV that comes and goes during one Run stream."""

    sender: Sender
    landing: Landing
    sending: Sending
    _under_way: list[Outgoing] = field(default_factory=list)

    @contextmanager
    def departing(self, hand_overs: Iterable[pb.HandOver]) -> Iterator[list[Departure]]:
        """The departures of one iteration, which is over when the block ends."""
        self._under_way.clear()
        try:
            yield [self._departure(each) for each in hand_overs if each.queries]
            for outgoing in self._under_way:
                outgoing.finish()
        except BaseException:  # whatever ends the iteration ends its pushes too, and goes on
            for outgoing in self._under_way:
                outgoing.abandon()
            raise

    def probe(self, hand_overs: Iterable[pb.HandOver]) -> None:
        """Sends those that carry no query."""
        for each in hand_overs:
            if not each.queries:
                self.sender.open(each, self.sending).finish()

    def arrivals(self, joins: Iterable[pb.Join]) -> list[Arrival]:
        """Those that join; raises `InvalidSpec` for KV that is not here."""
        return [
            _arrival(arrived, each)
            for join in joins
            for arrived in [self.landing.take(join.transfer)]
            for each in join.queries
        ]

    def news(self, result: pb.IterationResult) -> pb.IterationResult:
        """`result` with what came and went since the last one."""
        result.arrived.extend(self.landing.arrived())
        result.handed.extend(self.sender.handed())
        return result

    def _departure(self, hand_over: pb.HandOver) -> Departure:
        def open_way(queries: Sequence[int], lengths: Sequence[int]) -> Outgoing:
            leaving = pb.HandOver()
            leaving.CopyFrom(hand_over)
            leaving.queries[:] = queries  # fewer than asked for, if some were dropped meanwhile
            outgoing = self.sender.open(leaving, self.sending, lengths)
            self._under_way.append(outgoing)
            return outgoing

        return Departure(queries=frozenset(hand_over.queries), open=open_way)


def _arrival(arrived: Arrived, joining: pb.Joining) -> Arrival:
    if joining.query not in arrived.queries:
        problem = f"query {joining.query} did not come with transfer {arrived.transfer}"
        raise InvalidSpec("Join", [problem])
    at = arrived.queries.index(joining.query)
    start, length = sum(arrived.tokens[:at]), arrived.tokens[at]
    return Arrival(
        encoded=Encoded(
            query=joining.query,
            sampling=sampling_of(joining.sampling),
            length=length,
            num_generated=joining.num_generated,
            token=joining.token,
        ),
        kv=lambda layer: arrived.layer(layer)[:, :, start : start + length],
    )


def sampling_of(message: pb.Sampling) -> Sampling:
    """The wire's sampling as the engine's."""
    return Sampling(
        temperature=message.temperature,
        top_k=message.top_k,
        top_p=message.top_p,
        seed=message.seed,
        max_tokens=message.max_tokens,
        min_tokens=message.min_tokens,
        ignore_eos=message.ignore_eos,
        end_tokens=tuple(message.end_tokens),
    )
