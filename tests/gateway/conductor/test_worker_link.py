from __future__ import annotations

from pathlib import Path

import pytest

from conductors import MakeWorker
from exegpt_gateway.worker_link import Patience, TakenOver, WorkerHung, WorkerLink, WorkerLost
from exegpt_wire import PROTOCOL, worker_pb2

CONFIGURE = worker_pb2.ConfigureRequest(model_path="/models/toy", dtype="float32", kv_tokens=640)


def encode(query: int, *, sequence: int = 1, decode_iterations: int = 0) -> worker_pb2.Command:
    chunk = worker_pb2.Chunk(
        query=query, tokens=[1, 2], last=True, sampling=worker_pb2.Sampling(max_tokens=9)
    )
    return worker_pb2.Command(
        step=worker_pb2.Step(sequence=sequence, chunks=[chunk], decode_iterations=decode_iterations)
    )


async def test_configure_names_the_worker_as_its_own_peer_under_a_new_epoch(
    make_worker: MakeWorker,
) -> None:
    worker = await make_worker()
    worker.epoch = 41
    link = WorkerLink(worker.address, CONFIGURE, now_ns=lambda: 7)
    reply = await link.connect()
    await link.connect()
    await link.close()

    first, second = worker.configured
    assert (first.protocol, first.epoch, second.epoch) == (PROTOCOL, 42, 43)
    assert (first.model_path, first.dtype, first.kv_tokens) == ("/models/toy", "float32", 640)
    assert list(first.peers) == [
        worker_pb2.Peer(address=worker.address, incarnation=worker.incarnation)
    ]
    assert reply.kv_tokens == worker.kv_tokens
    assert not CONFIGURE.peers


async def test_nobody_at_the_address_is_a_lost_worker(tmp_path: Path) -> None:
    link = WorkerLink(f"unix://{tmp_path}/nobody.sock", CONFIGURE)
    with pytest.raises(WorkerLost, match=r"nobody.sock is lost: unavailable"):
        await link.connect()
    with pytest.raises(WorkerLost, match="Connect first"):
        await link.send(encode(1))


async def test_results_come_in_order_and_a_killed_worker_is_lost(make_worker: MakeWorker) -> None:
    worker = await make_worker()
    link = WorkerLink(worker.address, CONFIGURE)
    await link.connect()
    await link.send(encode(1, decode_iterations=2))
    results = [await link.receive(2) for _ in range(3)]
    assert [each.last for each in results] == [False, False, True]
    assert [each.active for each in results] == [1, 1, 1]

    await worker.kill()
    with pytest.raises(WorkerLost):
        await link.receive(2)
    with pytest.raises(WorkerLost):
        await link.send(encode(2))
    await link.close()


async def test_patience_grows_with_the_work_that_was_sent(make_worker: MakeWorker) -> None:
    worker = await make_worker()
    worker.iteration_s = 0.002  # it says: for 2 tokens, so 1 ms each
    link = WorkerLink(worker.address, CONFIGURE, patience=Patience(floor_s=2, multiple=10))
    await link.connect()
    await link.send(encode(1))
    await link.receive(2)
    await worker.hold_after(1)
    await link.send(encode(2, sequence=2))

    with pytest.raises(WorkerHung, match=r"no result for 2\.03 s"):
        await link.receive(3)
    await link.close()


async def test_the_first_epoch_is_when_the_conductor_was_made(make_worker: MakeWorker) -> None:
    worker = await make_worker()
    link = WorkerLink(worker.address, CONFIGURE, now_ns=lambda: 1000)
    await link.connect()
    await worker.restart()
    await link.connect()
    await link.close()
    assert [each.epoch for each in worker.configured] == [1000, 1001]


@pytest.mark.parametrize("has_restarted", [False, True])
async def test_a_worker_that_a_newer_conductor_configured_is_left_alone(
    make_worker: MakeWorker, has_restarted: bool
) -> None:
    worker = await make_worker()
    older, newer = (WorkerLink(worker.address, CONFIGURE, now_ns=lambda at=at: at) for at in (5, 9))  # type: ignore[misc]  # mypy knows no type of `at`
    await older.connect()
    if has_restarted:
        await worker.restart()
    await newer.connect()
    with pytest.raises(TakenOver, match=r"taken over the worker at .*: it has epoch 9, ours is 5"):
        await older.connect()
    await newer.connect()
    assert [each.epoch for each in worker.configured] == [5, 9, 10]
    await newer.close()


async def test_the_newest_takes_a_restarted_worker_back_from_an_older_conductor(
    make_worker: MakeWorker,
) -> None:
    worker = await make_worker()
    older, newer = (WorkerLink(worker.address, CONFIGURE, now_ns=lambda at=at: at) for at in (5, 9))  # type: ignore[misc]  # mypy knows no type of `at`
    await older.connect()
    await newer.connect()
    for _ in range(2):
        await worker.restart()
        worker.epoch = 6  # as if the older one had been there first
        await newer.connect()
    assert [each.epoch for each in worker.configured] == [5, 9, 10, 11]
    with pytest.raises(TakenOver):
        await older.connect()
    await newer.close()
