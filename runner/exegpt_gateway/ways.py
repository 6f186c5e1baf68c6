"""The ways KV may take from encoders to decoders: which are open, and how much each decoder still takes."""

from __future__ import annotations

from collections.abc import Sequence

from exegpt_gateway.hand_overs import HandOvers
from exegpt_gateway.lane import Lane
from exegpt_gateway.messages import add_probe
from exegpt_gateway.policies import Part, Room
from exegpt_gateway.probes import Probes
from exegpt_wire import worker_pb2


class Ways:
    """All pairs of an encoder and a decoder, as the schedule in force has them."""

    def __init__(self, lanes: Sequence[Lane], hand_overs: HandOvers) -> None:
        self.probes = Probes()
        self._lanes = lanes
        self._hand_overs = hand_overs
        self._parts: Sequence[Part] = ()

    def follow(self, parts: Sequence[Part]) -> None:
        """Takes the lanes to have these parts from now on."""
        self._parts = parts

    @property
    def is_any_open(self) -> bool:
        """Whether KV gets from some encoder to some decoder."""
        return any(
            self._is_open(encoder, decoder)
            for encoder in self._of("encoder")
            for decoder in self._of("decoder")
        )

    @property
    def are_all_open(self) -> bool:
        """Whether KV gets from every encoder to every decoder; true where there are none."""
        return all(
            self._is_open(encoder, decoder)
            for encoder in self._of("encoder")
            for decoder in self._of("decoder")
        )

    def decoder_for(self, encoder: Lane, pool: int) -> Lane | None:
        """The decoder with the most places, of pools of `pool` queries, that KV gets to from `encoder`."""
        there = [each for each in self._of("decoder") if self._is_open(encoder, each)]
        return max(there, key=lambda each: self.room(each, pool).places, default=None)

    def room(self, decoder: Lane, pool: int) -> Room:
        """What `decoder` has room for in a pool of `pool` queries."""
        held, index = decoder.pool, decoder.index
        arriving = self._hand_overs.num_arriving(index)
        return Room(
            places=pool - len(held) - arriving,
            kv_held=held.kv_used + self._hand_overs.kv_tokens(index) + len(held.active),
            kv_capacity=held.kv_capacity,
            is_empty=not (len(held) or arriving),
        )

    def probe(self, encoder: Lane) -> worker_pb2.Step | None:
        """A step that tries the way to a decoder, if one is untried."""
        for decoder in self._of("decoder"):
            if decoder.is_connected and self.probes.is_due(encoder, decoder):
                number, step = self._hand_overs.next_id(), worker_pb2.Step()
                add_probe(step, number, decoder.link.place)
                self.probes.begin(encoder, decoder, number)
                return step
        return None

    def _is_open(self, encoder: Lane, decoder: Lane) -> bool:
        return (
            encoder.is_connected
            and decoder.is_connected
            and self.probes.has_passed(encoder, decoder)
        )

    def _of(self, part: Part) -> list[Lane]:
        return [lane for lane, own in zip(self._lanes, self._parts, strict=True) if own == part]
