"""KV on its way is damaged, or comes twice, late, or to the wrong place: named, counted, and encoded again."""

from __future__ import annotations

import pytest

from exegpt_gateway import messages
from exegpt_wire import PROTOCOL
from faults.relay import Gate, Harm, extended, flipped, headed, truncated
from faults.rig import LENGTHS, WAA, Load, Rig

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

NUM_HARMED = 3
HARMS: dict[str, tuple[Harm, str, str]] = {  # what is done, the reason, and what is said
    "no trailer": (truncated(3), "data_loss", "ended before its trailer"),
    "half a layer": (truncated(2, half=True), "data_loss", "bytes before the end of layer 1"),
    "header only": (truncated(1), "data_loss", "bytes before the end of layer 0"),
    "nothing": (truncated(0), "data_loss", "ended before its header"),
    "a bit of a layer": (flipped(1), "data_loss", "checksum"),
    "a bit of the trailer": (flipped(3), "data_loss", ""),
    "more at the end": (extended, "data_loss", "goes on after its trailer"),
    "another protocol": (headed(protocol=PROTOCOL + 1), "failed_precondition", "use one version"),
    "another model": (headed(model_fingerprint="other"), "failed_precondition", "model other"),
    "other weights": (headed(weights_digest="other"), "failed_precondition", "weights other"),
    "another life": (headed(incarnation=1), "failed_precondition", "incarnation 1"),
    "an old epoch": (headed(epoch=1), "failed_precondition", "epoch 1"),
    "another dtype": (headed(dtype="bfloat16"), "failed_precondition", "dtype bfloat16"),
    "other layers": (headed(num_layers=9), "failed_precondition", "layers 0 to 9"),
    "no room": (headed(tokens=[1 << 20]), "resource_exhausted", "holds at most"),
}


def failures(rig: Rig) -> dict[str, float]:
    """Failed hand-overs by reason."""
    return {
        sample.labels["reason"]: sample.value
        for metric in rig.registry.collect()
        for sample in metric.samples
        if sample.name == "exegpt_kv_transfer_failures_total"
    }


@pytest.mark.parametrize("harm", HARMS)
async def test_a_harmed_transfer_is_refused_counted_and_encoded_again(
    rig: Rig, undisturbed: list[list[int]], harm: str
) -> None:
    starts = [worker.starts for worker in rig.up_to(2)]
    async with rig.waa() as (conductor, relay):
        relay.harm, reason, says = HARMS[harm]
        relay.num_harmed = NUM_HARMED
        assert await Load(conductor).finished() == undisturbed
    assert failures(rig) == {reason: NUM_HARMED}
    assert {code.name.lower() for code, _ in relay.endings} == {reason}
    assert all(says in problem for _, problem in relay.endings)
    assert [worker.starts for worker in rig.workers] == starts
    assert rig.metric("exegpt_worker_restarts_total") == 0
    assert rig.metric("exegpt_queries_total", outcome="length") == len(LENGTHS)


async def test_a_replayed_transfer_is_refused_and_the_first_one_counts(
    rig: Rig, undisturbed: list[list[int]]
) -> None:
    async with rig.waa() as (conductor, relay):
        relay.is_replaying, relay.num_harmed = True, NUM_HARMED
        assert await Load(conductor).finished() == undisturbed
    assert failures(rig) == {"already_exists": NUM_HARMED}


async def test_a_late_transfer_is_given_up_and_encoded_again(
    rig: Rig, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "HAND_OVER_S", 1.5)  # half a minute in earnest
    gate = Gate()
    async with rig.waa() as (conductor, relay):
        relay.harm, relay.num_harmed = gate.hold, 1
        assert await Load(conductor).finished() == undisturbed
    assert gate.reached.is_set()
    assert not gate.opened.is_set()
    assert failures(rig) == {"deadline_exceeded": 1}


async def test_a_relay_that_dies_is_found_again(rig: Rig, undisturbed: list[list[int]]) -> None:
    gate = Gate()
    async with rig.waa() as (conductor, relay):
        relay.harm, relay.num_harmed, relay.skip = gate.hold, 1, 1
        load = Load(conductor)
        await gate.reached.wait()
        await relay.close()
        gate.opened.set()
        await relay.start()
        assert await load.finished() == undisturbed
    found = failures(rig)
    assert found
    assert set(found) <= {"unavailable", "cancelled"}


async def test_a_small_arena_evicts_and_loses_nothing(
    rig: Rig, undisturbed: list[list[int]]
) -> None:
    encoder, decoder = rig.up_to(2)
    configure = rig.configure(kv_tokens=6 * 64)
    links = [rig.link(each, configure=configure) for each in (encoder, decoder)]
    async with rig.conducting(links, WAA, kv_tokens=6 * 64) as conductor:
        assert await Load(conductor).finished() == undisturbed
    assert rig.metric("exegpt_evictions_total") > 0
    assert failures(rig) == {}
