"""The gRPC service that steers a running gateway (gateway.proto): the plan in force, and another one without a pause.

It listens on a Unix socket that only its owner may open, or on TCP behind a token. It only reads plans and names
refusals; what they mean is steering.py's to say.
"""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn

import grpc
from grpc import aio

from exegpt_gateway.self_test import SelfTest
from exegpt_gateway.steering import OtherLengths, Reason, Refused, Steering
from exegpt_planner.errors import (
    ExeGPTError,
    IncompleteProfile,
    InfeasibleBound,
    InvalidSpec,
    Unavailable,
)
from exegpt_planner.manifest import WorkloadSpec
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import Schedule
from exegpt_planner.strict import StrictModel, json_object, parse, parse_json
from exegpt_wire import GRPC_OPTIONS, gateway_pb2
from exegpt_wire.gateway_pb2_grpc import GatewayServicer, add_GatewayServicer_to_server
from exegpt_wire.token import AioTokenInterceptor

END_S = 1.0  # what a call under way gets when the gateway ends

_STATUS: Final[dict[Reason, grpc.StatusCode]] = {
    "unfit": grpc.StatusCode.FAILED_PRECONDITION,
    "beyond_bound": grpc.StatusCode.FAILED_PRECONDITION,
    "no_room": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "stale": grpc.StatusCode.ABORTED,
}

Context = aio.ServicerContext[Any, Any]


class _Chosen(StrictModel):
    schedule: Schedule


class Control(GatewayServicer):
    """The service, in the gateway's own loop."""

    def __init__(self, steering: Steering, self_test: SelfTest | None) -> None:
        self._steering, self._self_test = steering, self_test

    async def Describe(  # noqa: N802 - the service's name
        self, request: gateway_pb2.DescribeRequest, context: Context
    ) -> gateway_pb2.DescribeReply:
        del request, context
        steering = self._steering
        return gateway_pb2.DescribeReply(
            revision=steering.revision,
            plan_json=steering.plan.model_dump_json(),
            num_workers=steering.num_workers,
            kv_tokens=steering.kv_tokens,
            model_fingerprint=steering.model_fingerprint,
            table_sha256=steering.plan.certificate.inputs.table,
        )

    async def UpdateSchedule(  # noqa: N802 - the service's name
        self, request: gateway_pb2.UpdateScheduleRequest, context: Context
    ) -> gateway_pb2.UpdateScheduleReply:
        try:
            change = await self._steering.take(
                _read(request),
                if_revision=request.if_revision if request.HasField("if_revision") else None,
                beyond_bound=request.beyond_bound,
                lengths=_lengths(request),
                plan_id=request.plan_id,
            )
        except ExeGPTError as error:
            await _refuse(context, error)
        return gateway_pb2.UpdateScheduleReply(
            revision=change.revision,
            after_iterations=change.after_iterations,
            plan_json=change.plan.model_dump_json(),
            previous_json=change.previous.model_dump_json(),
        )

    async def Report(  # noqa: N802 - the service's name
        self, request: gateway_pb2.ReportRequest, context: Context
    ) -> gateway_pb2.ReportReply:
        del request, context
        conductor, self_test = self._steering.conductor, self._self_test
        lengths = conductor.metrics.lengths
        kept, answers = conductor.metrics.within
        return gateway_pb2.ReportReply(
            plan_id=self._steering.plan_id,
            revision=self._steering.revision,
            is_complete=conductor.is_settled and (self_test is None or self_test.has_passed),
            self_test_problem="" if self_test is None else self_test.problem,
            lost_workers=conductor.lost_workers,
            transfer_problem=conductor.transfer_problem,
            num_answers=answers,
            num_kept=kept,
            input=_histogram(lengths.inputs),
            output=_histogram(lengths.outputs),
        )


def _histogram(counts: Mapping[int, int]) -> gateway_pb2.Histogram:
    seen = sorted(counts.items())
    return gateway_pb2.Histogram(
        lengths=[length for length, _ in seen], counts=[count for _, count in seen]
    )


def _lengths(request: gateway_pb2.UpdateScheduleRequest) -> OtherLengths | None:
    if not request.HasField("workload_json"):
        return None
    text = request.workload_json
    if text.strip() == "null":
        return OtherLengths(workload=None)
    return OtherLengths(workload=parse_json(WorkloadSpec, text, source="workload_json"))


def _read(request: gateway_pb2.UpdateScheduleRequest) -> Plan | Schedule:
    match request.WhichOneof("change"):
        case "plan_json":
            return parse_json(Plan, request.plan_json, source="plan_json")
        case "schedule_json":
            given = json_object(request.schedule_json, "schedule_json")
            return parse(_Chosen, {"schedule": given}, source="schedule_json").schedule
        case _:
            raise InvalidSpec("UpdateSchedule", ["neither plan_json nor schedule_json is given"])


async def _refuse(context: Context, error: ExeGPTError) -> NoReturn:
    match error:
        case Refused():
            status = _STATUS[error.reason]
        case InvalidSpec():
            status = grpc.StatusCode.INVALID_ARGUMENT
        case IncompleteProfile():
            status = grpc.StatusCode.OUT_OF_RANGE
        case InfeasibleBound():
            status = grpc.StatusCode.FAILED_PRECONDITION
        case _:
            status = grpc.StatusCode.UNAVAILABLE
    await context.abort(status, str(error))


@asynccontextmanager
async def listening(
    steering: Steering, address: str, *, token: str | None, self_test: SelfTest | None = None
) -> AsyncIterator[None]:
    """The service at `address`, "unix:///path" or "host:port", while the block runs."""
    check_address(address, has_token=token is not None)
    server = aio.server(options=list(GRPC_OPTIONS), interceptors=[AioTokenInterceptor(token)])
    add_GatewayServicer_to_server(Control(steering, self_test), server)
    before = os.umask(0o177)  # a Unix socket is its owner's alone
    try:
        server.add_insecure_port(address)
    except RuntimeError:
        raise Unavailable(f"cannot listen on {address}. Choose another --control.") from None
    finally:
        os.umask(before)
    await server.start()
    try:
        yield
    finally:
        await server.stop(END_S)


def check_address(address: str, *, has_token: bool) -> None:
    """Raises where nobody should, or could, listen: before anything is measured."""
    path = socket_path(address)
    if path is None:
        if not has_token:
            raise InvalidSpec(
                "--control",
                [f"{address} is on a network: give --control-token FILE too, or use unix:///path"],
            )
        return
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(path)
        except FileNotFoundError:
            if not os.path.isdir(os.path.dirname(path) or "."):
                raise Unavailable(f"cannot listen on {path}: no such folder. Make it.") from None
        except OSError:
            return  # a socket that nobody listens on any more: it is replaced
        else:
            raise Unavailable(f"{path} is in use by another gateway. Choose another --control.")


def socket_path(address: str) -> str | None:
    """The path of a Unix socket's address; None for one on a network."""
    for scheme in ("unix://", "unix:"):
        if address.startswith(scheme):
            return address.removeprefix(scheme)
    return None
