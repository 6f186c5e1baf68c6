"""Placing a worker: epochs, reuse of weights, refusals."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from exegpt_planner.model_spec import read_model_spec
from exegpt_wire import EPOCH_KEY, PROTOCOL
from exegpt_wire import worker_pb2 as pb
from tiny_models import write_model
from worker_client import Configure, Stream, chunk
from worker_process import WorkerProcess


def _refusal(call: Configure, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(**fields)
    return caught.value.code(), str(caught.value.details())


def test_describe_says_what_the_worker_is(worker: WorkerProcess, configure: Configure) -> None:
    reply = configure()
    described = worker.stub.Describe(pb.DescribeRequest())
    assert described.protocol == PROTOCOL
    assert described.epoch == reply.epoch
    assert described.incarnation == reply.incarnation != 0
    assert described.device.startswith("cpu: ")
    assert described.threads == 1
    assert described.memory_bytes > 2**28
    assert set(described.versions) == {"torch", "engine"}


def test_the_reply_describes_the_model_and_at_least_the_room_asked_for(
    configure: Configure, model_dir: Path
) -> None:
    reply = configure(kv_tokens=1000)
    spec = read_model_spec(model_dir)
    assert reply.kv_tokens == 1024  # whole extents
    assert reply.weight_bytes == 8 * spec.num_parameters
    assert reply.model_fingerprint == spec.fingerprint


def test_an_older_epoch_is_refused(configure: Configure) -> None:
    older = configure().epoch
    newest = configure().epoch
    assert configure(epoch=newest).epoch == newest  # the same request again: a retry
    for epoch, kv_tokens in ((newest, 64), (older, 2048)):
        code, text = _refusal(configure, epoch=epoch, kv_tokens=kv_tokens)
        assert code is grpc.StatusCode.ABORTED
        assert f"epoch {epoch} is not newer" in text


def test_a_newer_epoch_ends_the_older_stream(worker: WorkerProcess, configure: Configure) -> None:
    configure()
    with Stream.opened(worker.stub) as old:
        old.send([chunk(1, [5, 6, 7], max_tokens=500)], decode=400)
        old.read()
        configure()
        with pytest.raises(grpc.RpcError) as caught:
            list(old.results)
        assert caught.value.code() is grpc.StatusCode.ABORTED
        with Stream.opened(worker.stub) as new:
            (result,) = new.step(decode=1)
            assert result.active == 0


def test_a_second_stream_of_the_same_epoch_is_refused(
    worker: WorkerProcess, stream: Stream
) -> None:
    stream.step(decode=1)
    with Stream.opened(worker.stub) as second, pytest.raises(grpc.RpcError) as caught:
        second.step(decode=1)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "in use" in str(caught.value.details())


def test_another_arena_for_the_same_model_does_not_read_it_again(
    configure: Configure, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model")
    configure(model_path=str(folder))
    weights = folder / "model.safetensors"
    stat = weights.stat()
    weights.write_bytes(b"\0" * stat.st_size)  # unreadable now, yet the same to look at
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert configure(model_path=str(folder), kv_tokens=4096).kv_tokens == 4096
    os.utime(weights, ns=(0, 0))
    code, _ = _refusal(configure, model_path=str(folder))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_what_was_meant_for_an_earlier_process_is_refused_so_that_one_asks_again(
    configure: Configure, worker: WorkerProcess
) -> None:
    incarnation = worker.stub.Describe(pb.DescribeRequest()).incarnation
    assert configure(peers=[pb.Peer(address=worker.address, incarnation=incarnation)]).epoch
    code, text = _refusal(configure, peers=[pb.Peer(incarnation=incarnation ^ 1)])
    assert code is grpc.StatusCode.UNAVAILABLE
    assert "is gone" in text


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"protocol": 7}, grpc.StatusCode.INVALID_ARGUMENT, "protocol: 7"),
        ({"dtype": "int4"}, grpc.StatusCode.INVALID_ARGUMENT, "'int4' is not one of"),
        ({"first_layer": 1}, grpc.StatusCode.INVALID_ARGUMENT, "holds all layers"),
        ({"model_path": "/no/such"}, grpc.StatusCode.INVALID_ARGUMENT, "/no/such"),
        ({"kv_tokens": 1 << 40}, grpc.StatusCode.RESOURCE_EXHAUSTED, "exceed the device's"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(
    configure: Configure, fields: dict[str, object], code: grpc.StatusCode, text: str
) -> None:
    found, details = _refusal(configure, **fields)
    assert found is code
    assert text in details


def test_a_worker_without_a_model_runs_nothing(worker: WorkerProcess, configure: Configure) -> None:
    _refusal(configure, model_path="/no/such")
    with Stream.opened(worker.stub) as stream, pytest.raises(grpc.RpcError) as caught:
        stream.step(decode=1)
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert "Configure it first" in str(caught.value.details())


def test_a_stream_that_is_cancelled_frees_the_worker(
    worker: WorkerProcess, configure: Configure
) -> None:
    configure()
    with Stream.opened(worker.stub) as stream:
        stream.send([chunk(1, [5, 6, 7], max_tokens=500)], decode=400)
        stream.read()
    begin_s = time.monotonic()
    configure()
    with Stream.opened(worker.stub) as stream:
        (result,) = stream.step(decode=1)
    assert result.active == 0
    assert time.monotonic() - begin_s < 5


def test_the_stream_of_an_overtaken_epoch_is_refused(
    worker: WorkerProcess, configure: Configure
) -> None:
    older, newer = configure().epoch, configure().epoch
    for epoch, is_refused in ((older, True), (newer, False)):
        results = worker.stub.Run(
            iter([pb.Command(step=pb.Step(sequence=1))]),
            metadata=((EPOCH_KEY, str(epoch)),),
            timeout=20,
        )
        if not is_refused:
            assert [result.last for result in results] == [True]
            continue
        with pytest.raises(grpc.RpcError) as caught:
            next(results)
        assert caught.value.code() is grpc.StatusCode.ABORTED
        assert f"epoch {older} is not {newer}" in str(caught.value.details())
