"""Workers that do not belong together: each is refused by name before a query depends on it, and nothing hangs."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from exegpt_gateway.worker_link import WorkerLink, WorkerRefused
from exegpt_planner.schedule import OrcaSchedule
from exegpt_runner.kv_transfer.framing import METHOD
from exegpt_wire import PROTOCOL
from exegpt_wire import worker_pb2 as pb
from exegpt_wire.token import bearer
from faults.rig import KV_TOKENS, WAA, Load, Rig, conductor_of
from faults.workers import Nursery, Worker

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]

# A worker of another release: the same but for its number.
OTHER_RELEASE = (
    "import sys, exegpt_wire; exegpt_wire.PROTOCOL += 1;"
    "from exegpt_runner.worker import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture
def start(nursery: Nursery, tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts workers of a test's own."""
    workers: list[Worker] = []

    def make(*options: str) -> Worker:
        worker = Worker(nursery, tmp_path / f"worker{len(workers)}.sock", options)
        worker.start()
        workers.append(worker)
        return worker

    yield make
    for worker in workers:
        worker.kill()


def token_file(folder: Path, token: str) -> tuple[str, str]:
    path = folder / token
    path.write_text(token)
    return "--token-file", str(path)


async def refusal(links: Sequence[WorkerLink]) -> str:
    """Why a conductor of these gives up; its queries hear the same."""
    conductor = conductor_of(links, OrcaSchedule(pool=1) if len(links) == 1 else WAA)
    load = Load(conductor)
    with pytest.raises(WorkerRefused) as caught:
        await asyncio.wait_for(conductor.run(), 30)
    await load.finished()
    assert {str(error) for error in load.errors} == {str(caught.value)}
    assert not any(load.answers)
    return str(caught.value)


async def test_a_decoder_with_other_weights_of_the_same_shape_is_refused(
    rig: Rig, tmp_path: Path
) -> None:
    from tiny_models import write_model  # loads torch

    other = write_model(tmp_path / "other", seed=1)
    encoder, decoder = rig.up_to(2)
    links = [rig.link(encoder), rig.link(decoder, configure=rig.configure(model_path=str(other)))]
    said = await refusal(links)
    assert "no KV gets from worker 0 to worker 1: weights" in said
    assert "Configure both workers alike" in said


async def test_a_decoder_of_another_dtype_is_refused(rig: Rig) -> None:
    encoder, decoder = rig.up_to(2)
    links = [rig.link(encoder), rig.link(decoder, configure=rig.configure(dtype="float32"))]
    assert "dtype float64 is not this worker's float32" in await refusal(links)


async def test_a_worker_of_another_protocol_version_is_refused(rig: Rig, tmp_path: Path) -> None:
    worker = Worker(rig.nursery, tmp_path / "other.sock")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OTHER_RELEASE, *worker.command
    )
    try:
        said = await refusal([rig.link(worker)])
        assert f"speaks protocol {PROTOCOL + 1}, this gateway {PROTOCOL}" in said
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize(
    ("given", "says"),
    [(None, "carries no token"), ("wrong", "carries another deployment's token")],
)
async def test_control_without_the_right_token_is_refused(
    start: Callable[..., Worker], rig: Rig, tmp_path: Path, given: str | None, says: str
) -> None:
    worker = start(*token_file(tmp_path, "right"))
    said = await refusal([rig.link(worker, token=given)])
    assert "refuses: unauthenticated" in said
    assert says in said
    assert "right" not in said.replace(str(tmp_path), "")


async def test_kv_with_another_token_is_refused(
    start: Callable[..., Worker], rig: Rig, tmp_path: Path
) -> None:
    encoder, decoder = start(*token_file(tmp_path, "left")), start(*token_file(tmp_path, "right"))
    said = await refusal([rig.link(encoder, token="left"), rig.link(decoder, token="right")])
    assert (
        "no KV gets from worker 0 to worker 1: the call carries another deployment's token" in said
    )


@pytest.mark.parametrize("token", [None, "wrong"])
async def test_a_stranger_pushes_no_kv(
    start: Callable[..., Worker],
    rig: Rig,
    tmp_path: Path,
    undisturbed: list[list[int]],
    token: str | None,
) -> None:
    encoder, decoder = (start(*token_file(tmp_path, "right")) for _ in range(2))
    links = [rig.link(each, token="right") for each in (encoder, decoder)]
    async with rig.conducting(links, WAA) as conductor:
        load = Load(conductor)
        await load.reached(1)
        place = links[1].place
        header = pb.KVHeader(
            protocol=PROTOCOL, transfer=99, incarnation=place.incarnation, epoch=place.epoch
        )
        async with aio.insecure_channel(decoder.address) as channel:
            push: Any = channel.stream_unary(METHOD)
            with pytest.raises(aio.AioRpcError) as caught:
                await push(iter([header.SerializeToString()]), timeout=10, metadata=bearer(token))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await load.finished() == undisturbed


async def test_a_plan_for_more_kv_than_a_worker_can_hold_is_refused(rig: Rig) -> None:
    (worker,) = rig.up_to(1)
    said = await refusal([rig.link(worker, configure=rig.configure(kv_tokens=1 << 40))])
    assert "refuses: resource_exhausted" in said
    assert KV_TOKENS < 1 << 40
