"""What serves in fake pods, by the real messages behind the real token; and how a kubelet words what goes wrong."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio

from cli.tables import KEY, LARGE, table_up_to
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.plan import Plan
from exegpt_planner.serving import Serving
from exegpt_planner.strict import parse_json
from exegpt_wire import GRPC_OPTIONS, gateway_pb2, profiler_pb2
from exegpt_wire.gateway_pb2_grpc import GatewayServicer, add_GatewayServicer_to_server
from exegpt_wire.profiler_pb2_grpc import ProfilerServicer, add_ProfilerServicer_to_server
from exegpt_wire.token import AioTokenInterceptor
from planner.builders import MODEL

Object = Mapping[str, Any]
Context = aio.ServicerContext[Any, Any]
DEVICE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Ailment:
    """How containers of a pod fail, as a kubelet says it."""

    phase: str
    state: Object
    last: Object = field(default_factory=dict)
    restarts: int = 0


def _waiting(reason: str, message: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


def not_created(message: str) -> Ailment:
    """A variable comes from what is not there."""
    return Ailment(phase="Pending", state=_waiting("CreateContainerConfigError", message))


IMAGE_PULL = Ailment(
    phase="Pending",
    state=_waiting("ErrImagePull", 'failed to resolve reference "localhost/none:1": not found'),
)
CRASH_LOOP = Ailment(
    phase="Running",
    state=_waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container"),
    last={"terminated": {"exitCode": 1, "reason": "Error"}},
    restarts=5,
)
OOM_KILLED = Ailment(
    phase="Running",
    state=_waiting("CrashLoopBackOff", "back-off 10s restarting failed container"),
    last={"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
    restarts=1,
)


class FakeGateway(GatewayServicer):
    """A gateway's control service; a test says what it has observed."""

    def __init__(self, serving: Serving) -> None:
        self.serving = serving
        self.plan, self.plan_id, self.revision = serving.plan, serving.plan_id, 1
        self.is_complete = True
        self.lost_workers: list[str] = []
        self.transfer_problem = ""
        self.num_answers = self.num_kept = 0
        self.inputs: Counter[int] = Counter()  # lengths, since the plan in force
        self.outputs: Counter[int] = Counter()
        self.taken: list[
            tuple[str, float]
        ] = []  # plans it was given while it ran; seconds since 1970

    async def Describe(  # noqa: N802 - the service's name
        self, request: gateway_pb2.DescribeRequest, context: Context
    ) -> gateway_pb2.DescribeReply:
        return gateway_pb2.DescribeReply(
            revision=self.revision, plan_json=self.plan.model_dump_json()
        )

    async def UpdateSchedule(  # noqa: N802 - the service's name
        self, request: gateway_pb2.UpdateScheduleRequest, context: Context
    ) -> gateway_pb2.UpdateScheduleReply:
        try:
            plan = parse_json(Plan, request.plan_json, source="plan_json")
        except InvalidSpec as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if plan.certificate.inputs.table != self.plan.certificate.inputs.table:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "it rests on another profile")
        self.inputs, self.outputs = Counter(), Counter()
        self.revision += 1
        before, self.plan = self.plan, plan
        self.plan_id = request.plan_id  # last: a test that sees it may observe queries at once
        self.taken.append((request.plan_id, time.time()))
        return gateway_pb2.UpdateScheduleReply(
            revision=self.revision,
            plan_json=plan.model_dump_json(),
            previous_json=before.model_dump_json(),
        )

    async def Report(  # noqa: N802 - the service's name
        self, request: gateway_pb2.ReportRequest, context: Context
    ) -> gateway_pb2.ReportReply:
        return gateway_pb2.ReportReply(
            plan_id=self.plan_id,
            revision=self.revision,
            is_complete=self.is_complete,
            lost_workers=self.lost_workers,
            transfer_problem=self.transfer_problem,
            num_answers=self.num_answers,
            num_kept=self.num_kept,
            input=_histogram(self.inputs),
            output=_histogram(self.outputs),
        )

    def observe(self, num_queries: int, *, input_tokens: int, output_tokens: int) -> None:
        """So many more queries, all of these lengths."""
        self.inputs[input_tokens] += num_queries
        self.outputs[output_tokens] += num_queries


def _histogram(counts: Mapping[int, int]) -> gateway_pb2.Histogram:
    seen = sorted(counts.items())
    return gateway_pb2.Histogram(
        lengths=[length for length, _ in seen], counts=[count for _, count in seen]
    )


class FakeProfiler(ProfilerServicer):
    """A profiling pod that has its table at once, or says why it has none."""

    def __init__(self, workers: int, problem: str) -> None:
        table = table_up_to(LARGE, KEY.model_copy(update={"workers": workers}))
        self._table = table.model_dump_json()
        self._problem = problem
        self.is_taken = False

    async def Progress(  # noqa: N802 - the service's name
        self, request: profiler_pb2.ProgressRequest, context: Context
    ) -> profiler_pb2.ProgressReply:
        if self._problem:
            return profiler_pb2.ProgressReply(done=3, total=100, problem=self._problem)
        return profiler_pb2.ProgressReply(
            done=100,
            total=100,
            table_json=self._table,
            model_json=MODEL.model_dump_json(),
            device_bytes=DEVICE_BYTES,
        )

    async def Taken(  # noqa: N802 - the service's name
        self, request: profiler_pb2.TakenRequest, context: Context
    ) -> profiler_pb2.TakenReply:
        self.is_taken = True
        return profiler_pb2.TakenReply()


async def served(service: FakeGateway | FakeProfiler, address: str, token: str) -> aio.Server:
    """Serves it at host:port; raises RuntimeError where somebody else does."""
    server = aio.server(options=list(GRPC_OPTIONS), interceptors=[AioTokenInterceptor(token)])
    if isinstance(service, FakeGateway):
        add_GatewayServicer_to_server(service, server)
    else:
        add_ProfilerServicer_to_server(service, server)
    server.add_insecure_port(address)
    await server.start()
    return server


def gateway_from(config: Object) -> FakeGateway:
    """As a gateway's pod starts from its ConfigMap."""
    return FakeGateway(parse_json(Serving, config["data"]["serving.json"], source="serving.json"))


def profiler_from(config: Object, problem: str) -> FakeProfiler:
    """As a profiling pod starts from its ConfigMap."""
    deployment = json.loads(config["data"]["deployment.json"])
    return FakeProfiler(deployment["spec"]["cluster"]["gpus"], problem)
