"""Nodes without machines, and a kubelet without containers: it says of each pod bound to them what a kubelet would.

One thread with an event loop. Pods get addresses out of 127.0.0.0/8, where gateways and profiling pods are answered for
(fake_pods.py), so a real operator calls them as it would real ones.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import os
import ssl
import threading
from collections.abc import AsyncGenerator, Coroutine, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import aiohttp
from grpc import aio

from cluster import fake_pods
from cluster.control_plane import ControlPlane
from cluster.fake_pods import Ailment, FakeGateway, FakeProfiler
from exegpt_operator import names
from exegpt_planner.errors import InvalidSpec

Object = Mapping[str, Any]
Where = tuple[str, str]  # namespace and name
T = TypeVar("T")

USER = "fake-kubelet"
LEASE_S, RENEW_S = 40, 10.0
TICK_S = 0.2  # until pods that wait for something are looked at again
_APPLY = {"Content-Type": "application/apply-patch+yaml"}
_STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}


@dataclass(slots=True)
class _Played:
    """A pod, and what it is made to do."""

    pod: Object
    ip: str = ""
    is_up: bool = False
    service: FakeGateway | FakeProfiler | None = None
    server: aio.Server | None = None
    said: Object = field(default_factory=dict)  # the status that was written last

    @property
    def where(self) -> Where:
        return self.pod["metadata"]["namespace"], self.pod["metadata"]["name"]

    @property
    def component(self) -> str:
        return str(self.pod["metadata"].get("labels", {}).get(names.COMPONENT_LABEL, ""))


class FakeNodes:
    """Runs until `stop`; a test adds nodes, makes pods ail, and finds gateways here."""

    def __init__(self, plane: ControlPlane) -> None:
        self._url = plane.server
        plane.authority.issue(USER, USER, groups=["system:masters"])
        pki = plane.authority.folder
        self._tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        self._tls.load_cert_chain(pki / f"{USER}.crt", pki / f"{USER}.key")
        self.ailments: dict[tuple[str, str], Ailment] = {}  # by namespace and component
        self.profile_problems: dict[str, str] = {}  # by namespace: why there is no table
        self.made: list[tuple[str, str, str]] = []  # (namespace, pod, uid) of every pod of ours
        self._nodes: list[str] = []
        self._pods: dict[str, _Played] = {}  # by uid
        self._addresses = (
            f"127.{16 + os.getpid() % 200}.{high}.{low}"
            for high, low in itertools.product(range(1, 250), range(1, 250))
        )
        self._loop = asyncio.new_event_loop()
        self._has_started: Future[None] = Future()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._has_started.result(30)

    def stop(self) -> None:
        """Ends it; the nodes are left to go stale."""
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()
        self._loop.close()

    def add(self, name: str, devices: Mapping[str, int]) -> None:
        """One more node, with so many of each extended resource."""
        self._call(self._add(name, devices))

    def remove(self, name: str) -> None:
        """Takes a node away."""
        self._nodes.remove(name)
        self._call(self._ask("DELETE", f"/api/v1/nodes/{name}"))

    def gateway(self, namespace: str, name: str) -> FakeGateway:
        """The gateway in a pod of this name; KeyError while there is none."""
        for played in list(self._pods.values()):
            if played.where == (namespace, name) and isinstance(played.service, FakeGateway):
                return played.service
        raise KeyError(name)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    # The thread's own.

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())

    async def _serve(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._tls)
        async with aiohttp.ClientSession(
            self._url,
            connector=connector,
            timeout=aiohttp.ClientTimeout(None),
            read_bufsize=1 << 20,
        ) as self._session:
            self._has_started.set_result(None)
            tasks = [
                asyncio.create_task(work) for work in (self._renew(), self._watch(), self._play())
            ]
            tasks.append(asyncio.create_task(self._ended()))
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            for played in list(self._pods.values()):
                await self._silence(played)
        for task in done:
            task.result()

    async def _ended(self) -> None:
        await self._end.wait()

    async def _ask(self, method: str, path: str, body: Object | None = None, **how: Any) -> Any:
        """A call; None where the object is gone, or another one came first."""
        async with self._session.request(method, path, json=body, **how) as response:
            found = await response.json()
            if response.status in (404, 409):
                return None
            if response.status >= 300:
                raise RuntimeError(f"{method} {path}: {found.get('message')}")
            return found

    async def _add(self, name: str, devices: Mapping[str, int]) -> None:
        resources = {key: str(count) for key, count in devices.items()}
        resources |= {"cpu": "64", "memory": "1Ti", "pods": "1000", "ephemeral-storage": "1Ti"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": ""}
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "status": {"capacity": resources, "allocatable": resources, "conditions": [ready]},
        }
        await self._ask("POST", "/api/v1/nodes", node)
        await self._beat(name)
        self._nodes.append(name)

    async def _renew(self) -> None:
        """Keeps the nodes alive for the node controller."""
        while True:
            for name in list(self._nodes):
                await self._beat(name)
            await asyncio.sleep(RENEW_S)

    async def _beat(self, name: str) -> None:
        path = f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{name}"
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_S, "renewTime": now}
        kind = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        lease = {**kind, "metadata": {"name": name}, "spec": spec}
        await self._ask("PATCH", f"{path}?fieldManager={USER}&force=true", lease, headers=_APPLY)

    async def _watch(self) -> None:
        """Keeps `_pods` as the API server has them."""
        async with contextlib.aclosing(self._events()) as events:
            async for kind, pod in events:
                uid, is_bound = pod["metadata"]["uid"], pod["spec"].get("nodeName") in self._nodes
                if kind == "DELETED":
                    if played := self._pods.pop(uid, None):
                        await self._silence(played)
                elif uid in self._pods:
                    self._pods[uid].pod = pod
                elif is_bound:
                    self._pods[uid] = _Played(pod)
                    self.made.append((*self._pods[uid].where, uid))

    async def _events(self) -> AsyncGenerator[tuple[str, Object], None]:
        while True:
            listed = await self._ask("GET", "/api/v1/pods")
            known = {pod["metadata"]["uid"] for pod in listed["items"]}
            for uid in [each for each in self._pods if each not in known]:
                yield "DELETED", self._pods[uid].pod
            for pod in listed["items"]:
                yield "ADDED", pod
            since = listed["metadata"]["resourceVersion"]
            async with self._session.get(f"/api/v1/pods?watch=1&resourceVersion={since}") as stream:
                async for line in stream.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        break
                    yield event["type"], event["object"]

    async def _play(self) -> None:
        while True:
            for played in list(self._pods.values()):
                await self._look(played)
            await asyncio.sleep(TICK_S)

    async def _look(self, played: _Played) -> None:
        pod = played.pod
        if "deletionTimestamp" in pod["metadata"]:
            await self._remove(played)
        elif pod["status"].get("phase") not in ("Succeeded", "Failed"):
            status = await self._status(played)
            if status != played.said:
                namespace, name = played.where
                path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
                uid = {"metadata": {"uid": pod["metadata"]["uid"]}}
                await self._ask("PATCH", path, uid | {"status": status}, headers=_STRATEGIC)
                played.said = status

    async def _remove(self, played: _Played) -> None:
        await self._silence(played)
        namespace, name = played.where
        uid = {"uid": played.pod["metadata"]["uid"]}
        body = {"gracePeriodSeconds": 0, "preconditions": uid}
        await self._ask("DELETE", f"/api/v1/namespaces/{namespace}/pods/{name}", body)

    async def _silence(self, played: _Played) -> None:
        played.is_up = False
        if played.server is not None:
            server, played.server = played.server, None
            await server.stop(None)

    async def _status(self, played: _Played) -> Object:
        ailment = self.ailments.get((played.where[0], played.component))
        if ailment is None and not played.is_up:
            ailment = await self._hindrance(played)
        if ailment is not None:
            await self._silence(played)
            return _status_of(played, ailment)
        if not played.is_up:
            try:
                await self._start(played)
            except InvalidSpec:  # a real one says so in its log, and ends
                return _status_of(played, fake_pods.CRASH_LOOP)
        if isinstance(played.service, FakeProfiler) and played.service.is_taken:
            return _status_of(played, _COMPLETED)
        return _status_of(played, None)

    async def _hindrance(self, played: _Played) -> Ailment | None:
        """What a kubelet waits for before it starts containers."""
        spec = played.pod["spec"]
        for volume in spec.get("volumes", []):
            if "secret" in volume and not await self._of(
                played, "secrets", volume["secret"]["secretName"]
            ):
                return _CREATING
            if "configMap" in volume and not await self._of(
                played, "configmaps", volume["configMap"]["name"]
            ):
                return _CREATING
        for variable in spec["containers"][0].get("env", []):
            source = variable.get("valueFrom", {}).get("secretKeyRef")
            if source is not None:
                secret = await self._of(played, "secrets", source["name"])
                if source["key"] not in (secret or {}).get("data", {}):
                    where = f"{played.where[0]}/{source['name']}"
                    words = f"couldn't find key {source['key']} in Secret {where}"
                    return fake_pods.not_created(words)
        return None

    async def _start(self, played: _Played) -> None:
        """Gives it an address and, if it is to answer, what answers there."""
        if played.component not in _PORTS:
            played.ip, played.is_up = played.ip or next(self._addresses), True
            return
        mounts = {each["name"]: each for each in played.pod["spec"]["volumes"]}
        secret = await self._of(played, "secrets", mounts["token"]["secret"]["secretName"])
        config = await self._of(played, "configmaps", mounts["config"]["configMap"]["name"])
        token = base64.b64decode(secret["data"]["token"]).decode()
        if played.component == "gateway":
            played.service = fake_pods.gateway_from(config)
        else:
            problem = self.profile_problems.get(played.where[0], "")
            played.service = fake_pods.profiler_from(config, problem)
        while True:
            played.ip = played.ip or next(self._addresses)
            try:
                address = f"{played.ip}:{_PORTS[played.component]}"
                played.server = await fake_pods.served(played.service, address, token)
                played.is_up = True
                return
            except RuntimeError:  # somebody else listens there
                played.ip = ""

    async def _of(self, played: _Played, plural: str, name: str) -> Any:
        return await self._ask("GET", f"/api/v1/namespaces/{played.where[0]}/{plural}/{name}")


_PORTS = {"gateway": names.CONTROL_PORT, "profile": names.PROFILE_PORT}
_CREATING = Ailment(phase="Pending", state={"waiting": {"reason": "ContainerCreating"}})
_COMPLETED = Ailment(
    phase="Succeeded", state={"terminated": {"exitCode": 0, "reason": "Completed"}}
)


def _status_of(played: _Played, ailment: Ailment | None) -> dict[str, Any]:
    """What a kubelet says of a pod that does well, or ails."""
    spec = played.pod["spec"]
    is_well = ailment is None
    state = {"running": {}} if ailment is None else ailment.state
    fetched = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    common = {"imageID": "", "started": is_well}
    return {
        "phase": "Running" if ailment is None else ailment.phase,
        "conditions": [
            {"type": "Initialized", "status": "True"},
            *(
                {"type": kind, "status": "True" if is_well else "False"}
                for kind in ("ContainersReady", "Ready")
            ),
        ],
        "initContainerStatuses": [
            common
            | {"name": each["name"], "image": each["image"], "ready": True, "restartCount": 0}
            | {"state": fetched}
            for each in spec.get("initContainers", [])
        ],
        "containerStatuses": [
            common
            | {
                "name": each["name"],
                "image": each["image"],
                "ready": is_well,
                "restartCount": 0 if ailment is None else ailment.restarts,
                "state": state,
                "lastState": {} if ailment is None else ailment.last,
            }
            for each in spec["containers"]
        ],
        **({"podIP": played.ip, "podIPs": [{"ip": played.ip}]} if played.ip else {}),
    }
