"""A loop on an API server of this process, with a gateway that answers and a planner that says what a test wants."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from exegpt_operator import names
from exegpt_operator.act import Actor
from exegpt_operator.api import Api
from exegpt_operator.look import Looker
from exegpt_operator.loop import Key, Loop
from exegpt_operator.manifests.profiles import profile_spec
from exegpt_operator.metrics import OperatorMetrics
from exegpt_operator.planning import Answer, Question
from exegpt_operator.reading import deployment_of
from exegpt_wire import gateway_pb2
from exegpt_wire.gateway_pb2_grpc import GatewayServicer, add_GatewayServicer_to_server
from operator_api import ApiServer, deployment_path, serving
from operator_world import IMAGES, resource

GOLDEN = Path(__file__).parent / "golden"
PLAN_JSON = (GOLDEN / "plan.json").read_text()
KEY = Key("deployment", "nlp", "translate")
TOKEN = "canary-of-the-token"


@dataclass(slots=True)
class Gateway(GatewayServicer):
    """Says what a test wants of itself."""

    plan_id: str = ""
    kept: int = 0
    answers: int = 0
    steers: list[str] = field(default_factory=list)
    port: int = 0

    def Describe(self, request: Any, context: Any) -> gateway_pb2.DescribeReply:  # noqa: N802 - gRPC's
        return gateway_pb2.DescribeReply()

    def Report(self, request: Any, context: Any) -> gateway_pb2.ReportReply:  # noqa: N802 - gRPC's
        law = gateway_pb2.Histogram(lengths=[10, 30], counts=[self.answers, self.answers])
        return gateway_pb2.ReportReply(
            plan_id=self.plan_id,
            is_complete=True,
            num_answers=self.answers,
            num_kept=self.kept,
            input=law,
            output=law,
        )

    def UpdateSchedule(  # noqa: N802 - gRPC's
        self, request: gateway_pb2.UpdateScheduleRequest, context: Any
    ) -> gateway_pb2.UpdateScheduleReply:
        self.steers.append(request.plan_id)
        self.plan_id = request.plan_id
        return gateway_pb2.UpdateScheduleReply()


class Bench:
    """One deployment of a cluster without controllers: pods are there when a test says so."""

    def __init__(self, api: ApiServer, gateway: Gateway, threads: ThreadPoolExecutor) -> None:
        self.api, self.gateway = api, gateway
        self.answer = Answer(inputs="", plan=PLAN_JSON)  # inputs as asked
        self.questions: list[Question] = []
        self.plan: Callable[[Question], Awaitable[Answer]] = self._plan
        self.named: list[Key] = []
        self._threads = threads
        self.restart()
        api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "nlp"}})
        api.put(_named("PersistentVolumeClaim", "weights"))

    def restart(self) -> None:
        """Another loop, which remembers nothing."""
        self.metrics = OperatorMetrics(CollectorRegistry())
        client = Api(self.api.client(), called=self.metrics.called)
        looker = Looker(client, IMAGES, sees_nodes=False)
        self.loop = Loop(
            looker, Actor(client), IMAGES, lambda q: self.plan(q), self.metrics, self._threads
        )
        self.loop.named = self.named.append

    async def _plan(self, question: Question) -> Answer:
        self.questions.append(question)
        return Answer(
            inputs=question.inputs,
            plan=self.answer.plan,
            reason=self.answer.reason,
            message=self.answer.message,
        )

    def deploy(self, **spec: Any) -> None:
        """Applies a deployment whose profile is there already."""
        wanted = resource(**spec)
        self.api.put(wanted)
        deployment, problems = deployment_of(wanted)
        assert deployment is not None, problems
        name = names.profile(profile_spec(deployment, IMAGES))
        ready = {"type": "Ready", "status": "True", "reason": "Profiled", "message": ""}
        self.api.put(
            {
                **_named(names.PROFILE, name),
                "status": {"conditions": [ready], "configMap": f"{name}-table", "sha256": "cafe"},
            }
        )
        memory = {"device_bytes": 1 << 34, "reserve_bytes": 1 << 28}
        data = {
            "table.json": (GOLDEN / "profile.json").read_text(),
            "model.json": (GOLDEN / "model.json").read_text(),
            "memory.json": json.dumps(memory),
        }
        self.api.put({**_named("ConfigMap", f"{name}-table"), "data": data})
        token = base64.b64encode(TOKEN.encode()).decode()
        self.api.put({**_named("Secret", "translate-token"), "data": {"token": token}})

    def start_pods(self) -> None:
        """Its pods, all ready."""
        for name, component in (
            ("translate-workers-0", "worker"),
            ("translate-workers-1", "worker"),
            ("translate-gateway-0", "gateway"),
        ):
            status: dict[str, Any] = {
                "podIP": "127.0.0.1",
                "phase": "Running",
                "conditions": [{"type": "Ready", "status": "True"}],
            }
            pod = _named("Pod", name)
            pod["metadata"]["labels"] = names.labels("translate", component)
            self.api.put({**pod, "status": status})

    async def look(self, times: int = 1) -> float | None:
        """Looks, and waits for the search that a look has begun."""
        again_s = None
        for _ in range(times):
            num_named = len(self.named)
            again_s = await self.loop.look(KEY)
            async with asyncio.timeout(10):
                while self.loop.is_planning and len(self.named) == num_named:
                    await asyncio.sleep(0.005)
        return again_s

    @property
    def status(self) -> dict[str, Any]:
        """The deployment's."""
        found: dict[str, Any] = self.api.objects[deployment_path()].get("status", {})
        return found

    def condition(self, kind: str) -> tuple[str, str]:
        """(status, reason) of a condition."""
        found = next(each for each in self.status["conditions"] if each["type"] == kind)
        return found["status"], found["reason"]

    def events(self) -> list[dict[str, Any]]:
        """Those that there are."""
        return [each for path, each in self.api.objects.items() if "/events/" in path]


@contextmanager
def benched() -> Iterator[Bench]:
    """One that runs; its gateway answers on `gateway.port`."""
    gateway = Gateway()
    with ThreadPoolExecutor(2) as answering, ThreadPoolExecutor(4) as threads, serving() as api:
        server = grpc.server(answering)
        add_GatewayServicer_to_server(gateway, server)
        gateway.port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield Bench(api, gateway, threads)
        finally:
            server.stop(None).wait()


def _named(kind: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": names.API_VERSION if kind == names.PROFILE else "v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "nlp"},
    }
