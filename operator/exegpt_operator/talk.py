"""Calls to our own pods, by address and with the token: gateways for what they see, profiling pods for tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import grpc

from exegpt_operator import names
from exegpt_operator.decide_profile import Progress
from exegpt_operator.seen import ServingSeen
from exegpt_planner.drift_laws import mean_change
from exegpt_planner.workload import Workload
from exegpt_wire import GRPC_OPTIONS, gateway_pb2, message_of, profiler_pb2
from exegpt_wire.gateway_pb2_grpc import GatewayStub
from exegpt_wire.profiler_pb2_grpc import ProfilerStub
from exegpt_wire.token import bearer

TIMEOUT_S = 3.0
STEER_S = 30.0  # foreseeing takes a second or two
T = TypeVar("T")


class Silent(Exception):
    """A pod does not answer, or says no; `str` is why."""


class Refused(Silent):
    """A pod answers, and will never do it as it is."""


_FOR_GOOD = frozenset(
    {
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.OUT_OF_RANGE,
    }
)


def report(ip: str, token: str, planned: Workload | None) -> ServingSeen:
    """What a gateway says of itself; `planned` is what observed lengths are held against."""
    reply: gateway_pb2.ReportReply = _call(
        ip,
        names.CONTROL_PORT,
        lambda channel: GatewayStub(channel).Report(
            gateway_pb2.ReportRequest(), timeout=TIMEOUT_S, metadata=bearer(token)
        ),
    )
    inputs, outputs = _Observed(reply.input), _Observed(reply.output)
    return ServingSeen(
        plan_id=reply.plan_id,
        is_complete=reply.is_complete,
        lost_workers=tuple(reply.lost_workers),
        transfer_problem=reply.transfer_problem,
        self_test_problem=reply.self_test_problem,
        num_s99=reply.num_answers,
        num_kept=reply.num_kept,
        num_queries=outputs.n,
        drift=0.0
        if planned is None
        else max(inputs.off(planned.input.mean), outputs.off(planned.output.mean)),
        observed={"input": inputs.histogram, "output": outputs.histogram},
    )


def steer(ip: str, token: str, *, plan: str, plan_id: str, workload: str) -> None:
    """Has a gateway work by this plan, made for these lengths."""
    request = gateway_pb2.UpdateScheduleRequest(
        plan_json=plan, plan_id=plan_id, workload_json=workload
    )
    _call(
        ip,
        names.CONTROL_PORT,
        lambda channel: GatewayStub(channel).UpdateSchedule(
            request, timeout=STEER_S, metadata=bearer(token)
        ),
    )


def progress(ip: str, token: str) -> Progress:
    """How far a profiling pod is."""
    reply: profiler_pb2.ProgressReply = _call(
        ip,
        names.PROFILE_PORT,
        lambda channel: ProfilerStub(channel).Progress(
            profiler_pb2.ProgressRequest(), timeout=TIMEOUT_S, metadata=bearer(token)
        ),
    )
    return Progress(
        done=reply.done,
        total=reply.total,
        doing=reply.doing,
        table=reply.table_json,
        model=reply.model_json,
        device_bytes=reply.device_bytes,
        reserve_bytes=reply.reserve_bytes,
        problem=reply.problem,
    )


def taken(ip: str, token: str) -> None:
    """Tells a profiling pod that it may end."""
    _call(
        ip,
        names.PROFILE_PORT,
        lambda channel: ProfilerStub(channel).Taken(
            profiler_pb2.TakenRequest(), timeout=TIMEOUT_S, metadata=bearer(token)
        ),
    )


def _call(ip: str, port: int, ask: Callable[[grpc.Channel], T]) -> T:
    host = f"[{ip}]" if ":" in ip else ip
    with grpc.insecure_channel(f"{host}:{port}", options=list(GRPC_OPTIONS)) as channel:
        try:
            return ask(channel)
        except grpc.RpcError as error:
            kind = Refused if error.code() in _FOR_GOOD else Silent
            raise kind(message_of(error.details())) from None


class _Observed:
    """An observed law."""

    def __init__(self, histogram: gateway_pb2.Histogram) -> None:
        self._lengths, self._counts = list(histogram.lengths), list(histogram.counts)
        self.n = int(sum(self._counts))
        total = sum(n * count for n, count in zip(self._lengths, self._counts, strict=True))
        self.mean = total / max(self.n, 1)

    def off(self, planned_mean: float) -> float:
        """Distance of the means, a share of the planned one."""
        return abs(mean_change(planned_mean, self.mean)) if self.n else 0.0

    @property
    def histogram(self) -> str:
        """As JSON; empty where nothing was seen."""
        return json.dumps({"lengths": self._lengths, "counts": self._counts}) if self.n else ""
