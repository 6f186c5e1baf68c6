"""Probes of the ways that KV takes: tried again after a failure, whose problem stands until one gets through."""

from __future__ import annotations

from typing import cast

import pytest

from exegpt_gateway.lane import Lane
from exegpt_gateway.probes import Probes
from exegpt_wire import worker_pb2


class _Lane:
    def __init__(self, index: int) -> None:
        self.index, self.connections = index, 1


def lanes() -> tuple[Lane, Lane]:
    return cast(Lane, _Lane(0)), cast(Lane, _Lane(1))


def test_a_problem_stands_until_a_probe_gets_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Probes, "RETRY_S", 0.0)
    probes, (encoder, decoder) = Probes(), lanes()
    probes.begin(encoder, decoder, 1)
    assert probes.problem == ""
    probes.ended(worker_pb2.Handed(transfer=1, reason="unavailable", problem="no route"))
    assert probes.problem == "no route"
    assert probes.is_due(encoder, decoder)
    probes.begin(encoder, decoder, 2)
    assert probes.problem == "no route", "another try is no success"
    probes.ended(worker_pb2.Handed(transfer=2))
    assert probes.problem == ""
    assert probes.has_passed(encoder, decoder)


def test_a_worker_that_connects_anew_is_probed_anew() -> None:
    probes, (encoder, decoder) = Probes(), lanes()
    probes.begin(encoder, decoder, 1)
    probes.ended(worker_pb2.Handed(transfer=1, reason="unavailable", problem="no route"))
    decoder.connections += 1
    assert probes.is_due(encoder, decoder)
    probes.begin(encoder, decoder, 2)
    assert probes.problem == ""
