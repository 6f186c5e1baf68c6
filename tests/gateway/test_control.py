"""Live change over gRPC: the service in the test's own loop, a conductor on a fake worker behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc import aio
from prometheus_client import CollectorRegistry

from cli.tables import promise
from conductors import build_conductor, eventually, greedy
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.control import check_address, listening
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.steering import BY_HAND, Foreseen, OtherLengths, Steering
from exegpt_planner.errors import IncompleteProfile, InvalidSpec, Unavailable
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.strict import read_json
from exegpt_wire import gateway_pb2
from exegpt_wire.gateway_pb2_grpc import GatewayStub
from exegpt_wire.token import bearer
from fake_worker import FakeWorker

if TYPE_CHECKING:
    from exegpt_wire.gateway_pb2_grpc import GatewayAsyncStub

GOLDEN = Path(__file__).parents[1] / "golden" / "plan.json"
Status = grpc.StatusCode


def planned(schedule: Schedule | None = None, **prediction: float) -> Plan:
    plan = read_json(Plan, GOLDEN)
    chosen = schedule or RraSchedule(encode_batch=2, encode_interval=3)
    predicted = plan.prediction.model_copy(update=prediction)
    return plan.model_copy(update={"schedule": chosen, "prediction": predicted, "warnings": ()})


def foresee(plan: Plan, _: OtherLengths | None = None) -> Foreseen:
    """As a simulator that knows B_E up to 100: 1 ms, and 1200 KV tokens, for each query of an encode."""
    batch = plan.schedule.encode_batch if isinstance(plan.schedule, RraSchedule) else 1
    if batch > 100:
        raise IncompleteProfile(f"encode_batch={batch} goes beyond the profile. Profile more.")
    predicted = plan.prediction.model_copy(
        update={"promised_s": batch / 1000, "kv_tokens_reserved": 1200.0 * batch}
    )
    changed = plan.model_copy(update={"prediction": predicted})
    return Foreseen(plan=changed, promise=replace(promise(), prediction=predicted))


class Gateway:
    """A conductor, what steers it, and a client."""

    def __init__(self, worker: FakeWorker, folder: Path) -> None:
        self.registry = CollectorRegistry()
        self.worker = worker
        plan = planned()
        self.conductor: Conductor = build_conductor(
            worker, plan.schedule, metrics=Metrics(self.registry, promise())
        )
        self.steering = Steering(self.conductor, plan, model_fingerprint="f00d", foresee=foresee)
        self.address = f"unix://{folder}/control.sock"

    @asynccontextmanager
    async def open(self, token: str | None = None) -> AsyncIterator[GatewayAsyncStub]:
        async with (
            listening(self.steering, self.address, token=token),
            aio.insecure_channel(self.address) as channel,
        ):
            stub: GatewayAsyncStub = GatewayStub(channel)
            yield stub


@pytest.fixture
async def gateway(tmp_path: Path) -> AsyncIterator[Gateway]:
    worker = FakeWorker(tmp_path / "worker.sock")
    await worker.start()
    yield Gateway(worker, tmp_path)
    await worker.kill()


def by_schedule(schedule: Schedule | dict[str, Any], **fields: Any) -> Any:
    text = json.dumps(schedule) if isinstance(schedule, dict) else schedule.model_dump_json()
    return gateway_pb2.UpdateScheduleRequest(schedule_json=text, **fields)


def by_plan(plan: Plan, change: Callable[[dict[str, Any]], object] = lambda data: None) -> Any:
    data = json.loads(plan.model_dump_json())
    change(data)
    return gateway_pb2.UpdateScheduleRequest(plan_json=json.dumps(data))


async def test_the_plan_in_force_is_described(gateway: Gateway) -> None:
    async with gateway.open() as stub:
        found = await stub.Describe(gateway_pb2.DescribeRequest())
    plan = Plan.model_validate_json(found.plan_json)
    assert plan == planned()
    assert (found.revision, found.num_workers, found.model_fingerprint) == (1, 1, "f00d")
    assert found.kv_tokens == plan.kv_tokens_capacity
    assert found.table_sha256 == plan.certificate.inputs.table


async def test_a_schedule_is_in_force_at_the_next_step_and_predicted_anew(
    gateway: Gateway,
) -> None:
    worker, conductor = gateway.worker, gateway.conductor
    running = asyncio.ensure_future(conductor.run())
    streams = [conductor.submit([n], greedy(40)) for n in range(3)]
    await worker.hold_after(2)
    await eventually(lambda: conductor.num_iterations == 2)
    async with gateway.open() as stub:
        reply = await stub.UpdateSchedule(
            by_schedule(RraSchedule(encode_batch=1, encode_interval=7), if_revision=1)
        )
        await worker.release()
        await worker.received(2)
    assert [step.decode_iterations for step in worker.steps[:2]] == [3, 7]
    assert (reply.revision, reply.after_iterations) == (2, 2)
    plan = Plan.model_validate_json(reply.plan_json)
    assert plan.schedule == RraSchedule(encode_batch=1, encode_interval=7)
    assert plan.prediction.promised_s == 0.001
    assert plan.warnings == (BY_HAND,)
    assert Plan.model_validate_json(reply.previous_json) == planned()
    value = gateway.registry.get_sample_value
    assert value("exegpt_schedule_revision") == 2
    assert value("exegpt_schedule_encode_interval_iterations") == 7
    assert value("exegpt_promised_latency_seconds") == 0.001
    for stream in streams:
        stream.cancel()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_whole_plan_takes_the_place_of_the_other(gateway: Gateway) -> None:
    plan = planned(CraSchedule(pool=9, chunk_tokens=32))
    async with gateway.open() as stub:
        reply = await stub.UpdateSchedule(by_plan(plan))
        again = await stub.UpdateSchedule(
            by_schedule(RraSchedule(encode_batch=5, encode_interval=2))
        )
    taken = Plan.model_validate_json(reply.plan_json)
    assert taken.schedule == plan.schedule
    assert taken.warnings == ()
    assert again.revision == 3
    assert Plan.model_validate_json(again.previous_json) == taken
    assert gateway.conductor.schedule == RraSchedule(encode_batch=5, encode_interval=2)


def more_kv(data: dict[str, Any]) -> None:
    data["kv_tokens_capacity"] += 1


def other(part: str) -> Callable[[dict[str, Any]], None]:
    def change(data: dict[str, Any]) -> None:
        data["certificate"]["inputs"][part] = "0" * 64

    return change


PLAN = planned()
REFUSED = {
    "no change": (gateway_pb2.UpdateScheduleRequest(), Status.INVALID_ARGUMENT, "neither"),
    "not JSON": (
        gateway_pb2.UpdateScheduleRequest(plan_json="{"), Status.INVALID_ARGUMENT, "not JSON",
    ),
    "no object": (
        gateway_pb2.UpdateScheduleRequest(plan_json="[1]"), Status.INVALID_ARGUMENT, "object",
    ),
    "a key twice": (
        gateway_pb2.UpdateScheduleRequest(schedule_json='{"strategy": "RRA", "strategy": "RRA"}'),
        Status.INVALID_ARGUMENT, "given twice",
    ),
    "another version": (
        by_plan(PLAN, lambda data: data.update(version="exegpt.plan/v2")),
        Status.INVALID_ARGUMENT, "exegpt.plan/v1",
    ),
    "an unknown field": (
        by_plan(PLAN, lambda data: data.update(shedule=1)),
        Status.INVALID_ARGUMENT, "did you mean 'schedule'",
    ),
    "a knob out of range": (
        by_schedule({"strategy": "RRA", "encode_batch": 0, "encode_interval": 1}),
        Status.INVALID_ARGUMENT, "encode_batch",
    ),
    "a comparison policy": (
        by_schedule({"strategy": "ORCA", "pool": 3}), Status.INVALID_ARGUMENT, "ORCA",
    ),
    "two workers": (
        by_schedule(WaaSchedule(encoders=1, decoders=1, encode_batch=2, pool=4)),
        Status.FAILED_PRECONDITION, "WAA for 2 workers, but there are 1",
    ),
    "two units": (
        by_schedule(RraSchedule(encode_batch=2, encode_interval=4, units=2)),
        Status.FAILED_PRECONDITION, "RRA for 2 workers",
    ),
    "a pipeline": (
        by_schedule({
            "strategy": "RRA", "encode_batch": 2, "encode_interval": 4,
            "layout": {"stages": [{"degree": 1, "layers": 2}, {"degree": 1, "layers": 2}]},
        }),
        Status.FAILED_PRECONDITION, "a model shared by several devices yet",
    ),
    "micro-batches": (
        by_schedule(RraSchedule(encode_batch=2, encode_interval=4, micro_batches=2)),
        Status.FAILED_PRECONDITION, "workers do not run micro-batches yet",
    ),
    "another profile": (
        by_plan(PLAN, other("table")), Status.FAILED_PRECONDITION, "rests on profile 000000000000",
    ),
    "other lengths": (
        by_plan(PLAN, other("workload")), Status.FAILED_PRECONDITION, "other lengths",
    ),
    "more KV than there is": (
        by_plan(PLAN, more_kv), Status.RESOURCE_EXHAUSTED, f"each holds {PLAN.kv_tokens_capacity}",
    ),
    "beyond the bound": (
        by_plan(
            planned(RraSchedule(encode_batch=80, encode_interval=1)),
            lambda data: data["bound"].update(seconds=0.05),
        ),
        Status.FAILED_PRECONDITION, "promises 0.08 s and the bound is 0.05 s",
    ),
    "beyond the profile": (
        by_schedule(RraSchedule(encode_batch=101, encode_interval=1)),
        Status.OUT_OF_RANGE, "encode_batch=101",
    ),
    "an old revision": (
        by_schedule(RraSchedule(encode_batch=1, encode_interval=1), if_revision=7),
        Status.ABORTED, "revision 1 is in force, not 7",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("request_", "status", "said"), REFUSED.values(), ids=REFUSED)
async def test_what_does_not_fit_is_refused_by_name_and_changes_nothing(
    gateway: Gateway, request_: Any, status: grpc.StatusCode, said: str
) -> None:
    async with gateway.open() as stub:
        with pytest.raises(aio.AioRpcError) as refused:
            await stub.UpdateSchedule(request_)
        found = await stub.Describe(gateway_pb2.DescribeRequest())
    assert refused.value.code() is status
    assert said in (refused.value.details() or "")
    assert found.revision == 1
    assert Plan.model_validate_json(found.plan_json) == PLAN
    assert gateway.conductor.schedule == PLAN.schedule


async def test_beyond_the_bound_only_when_told_so_and_never_beyond_the_memory(
    gateway: Gateway,
) -> None:
    late = RraSchedule(encode_batch=80, encode_interval=1)
    gateway.steering.plan = PLAN.model_copy(
        update={"bound": PLAN.bound.model_copy(update={"seconds": 0.05})}
    )
    async with gateway.open() as stub:
        with pytest.raises(aio.AioRpcError, match="the bound is"):
            await stub.UpdateSchedule(by_schedule(late))
        reply = await stub.UpdateSchedule(by_schedule(late, beyond_bound=True))
        assert reply.revision == 2
        large = RraSchedule(encode_batch=90, encode_interval=1)
        with pytest.raises(aio.AioRpcError, match="needs 108000 KV tokens") as refused:
            await stub.UpdateSchedule(by_schedule(large, beyond_bound=True))
    assert refused.value.code() is Status.RESOURCE_EXHAUSTED


async def test_a_gateway_that_drains_takes_no_change(gateway: Gateway) -> None:
    gateway.conductor.drain()
    async with gateway.open() as stub:
        with pytest.raises(aio.AioRpcError, match="drains") as refused:
            await stub.UpdateSchedule(by_schedule(RraSchedule(encode_batch=1, encode_interval=1)))
    assert refused.value.code() is Status.UNAVAILABLE


async def test_every_call_needs_the_token(gateway: Gateway) -> None:
    async with gateway.open(token="right") as stub:
        for wrong in (None, "wrong"):
            with pytest.raises(aio.AioRpcError, match="token") as refused:
                await stub.Describe(gateway_pb2.DescribeRequest(), metadata=bearer(wrong))
            assert refused.value.code() is Status.UNAUTHENTICATED
        found = await stub.Describe(gateway_pb2.DescribeRequest(), metadata=bearer("right"))
    assert found.revision == 1


async def test_the_socket_is_its_owners_and_one_gateways(gateway: Gateway) -> None:
    path = Path(gateway.address.removeprefix("unix://"))
    async with gateway.open():
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(Unavailable, match="in use by another gateway"):
            check_address(gateway.address, has_token=False)
    check_address(gateway.address, has_token=False)  # left behind or not: free
    async with gateway.open() as stub:
        assert (await stub.Describe(gateway_pb2.DescribeRequest())).revision == 1


def test_a_network_needs_a_token_and_a_socket_a_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="--control-token"):
        check_address("127.0.0.1:7000", has_token=False)
    check_address("127.0.0.1:7000", has_token=True)
    with pytest.raises(Unavailable, match="no such folder"):
        check_address(f"unix://{tmp_path}/missing/x.sock", has_token=False)


async def test_a_report_says_what_is_served_and_what_was_seen(gateway: Gateway) -> None:
    worker, conductor = gateway.worker, gateway.conductor
    async with gateway.open() as stub:
        before = await stub.Report(gateway_pb2.ReportRequest())
        assert (before.is_complete, list(before.lost_workers)) == (False, [worker.address])
        running = asyncio.ensure_future(conductor.run())
        streams = [conductor.submit([7] * size, greedy(4)) for size in (3, 3, 9)]
        for stream in streams:
            async for _ in stream:
                pass
        found = await stub.Report(gateway_pb2.ReportRequest())
        assert found.is_complete
        assert not found.lost_workers
        assert list(zip(found.input.lengths, found.input.counts, strict=True)) == [(3, 2), (9, 1)]
        assert list(zip(found.output.lengths, found.output.counts, strict=True)) == [(4, 3)]
        await stub.UpdateSchedule(by_plan(planned()))
        assert not (await stub.Report(gateway_pb2.ReportRequest())).output.lengths, "anew"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_plan_for_other_lengths_comes_with_them(gateway: Gateway) -> None:
    """Refused without its lengths, and by a gateway that follows a manifest; what it is called is kept."""
    seen: list[OtherLengths | None] = []

    def foresee_for(plan: Plan, lengths: OtherLengths | None) -> Foreseen:
        seen.append(lengths)
        return foresee(plan)

    def other(data: dict[str, Any]) -> None:
        data["certificate"]["inputs"]["workload"] = "ab" * 32

    law = {"mean": 30, "std": 9, "max": 90}
    request = by_plan(planned(), other)
    async with gateway.open() as stub:
        for refused in (request, _with_lengths(request, {"input": law, "output": law})):
            with pytest.raises(aio.AioRpcError) as error:
                await stub.UpdateSchedule(refused)
            assert error.value.code() is Status.FAILED_PRECONDITION
    gateway.steering = Steering(
        gateway.conductor,
        planned(),
        model_fingerprint="f00d",
        foresee=foresee_for,
        takes_lengths=True,
    )
    async with gateway.open() as stub:
        request.plan_id = "cafe"
        beyond = by_plan(planned(RraSchedule(encode_batch=99, encode_interval=1)), other)
        with pytest.raises(aio.AioRpcError):  # no room: refused, and so are its lengths
            await stub.UpdateSchedule(_with_lengths(beyond, {"input": law, "output": law}))
        await stub.UpdateSchedule(by_schedule(RraSchedule(encode_batch=2, encode_interval=2)))
        assert seen.pop() is None, "still those of the start"
        seen.clear()
        await stub.UpdateSchedule(_with_lengths(request, {"input": law, "output": law}))
        await stub.UpdateSchedule(_with_lengths(request, None))
        assert (await stub.Report(gateway_pb2.ReportRequest())).plan_id == "cafe"
        with pytest.raises(aio.AioRpcError) as error:
            await stub.UpdateSchedule(_with_lengths(request, {"input": law}))
        assert error.value.code() is Status.INVALID_ARGUMENT
    assert seen[0] is not None
    assert seen[0].workload is not None
    assert seen[0].workload.input is not None
    assert seen[0].workload.input.moments == (30, 9, 90)
    assert seen[1] == OtherLengths(workload=None)


def _with_lengths(request: Any, lengths: dict[str, Any] | None) -> Any:
    changed = gateway_pb2.UpdateScheduleRequest()
    changed.CopyFrom(request)
    changed.workload_json = json.dumps(lengths)
    return changed


async def test_edits_and_calls_share_one_revision(gateway: Gateway) -> None:
    schedule = CraSchedule(pool=4, chunk_tokens=32)
    change = await gateway.steering.replan(lambda: foresee(planned(schedule)))
    assert (change.revision, change.previous) == (2, planned())
    assert gateway.conductor.schedule == schedule
    async with gateway.open() as stub:
        with pytest.raises(aio.AioRpcError, match="revision 2 is in force"):
            await stub.UpdateSchedule(by_schedule(schedule, if_revision=1))
