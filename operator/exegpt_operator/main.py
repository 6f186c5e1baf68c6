"""The operator's process: kopf watches, one queue works, a Lease says who may act, health says whether all moves.

Only `on.event` and `on.startup`: no timers, daemons or delete handlers, which would force finalizers, and no state of
kopf's on our resources. `python -m exegpt_operator.main --runner-image … --gateway-image …`
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import logging
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import kopf
from aiohttp import web
from kubernetes import client, config
from prometheus_client import CollectorRegistry, start_http_server

from exegpt_operator import names
from exegpt_operator.act import Actor
from exegpt_operator.api import Api, ApiRefused
from exegpt_operator.lease import RENEW_S, next_lease
from exegpt_operator.look import Looker
from exegpt_operator.loop import KINDS, Key, Kind, Loop, keys_of
from exegpt_operator.manifests.images import Images
from exegpt_operator.metrics import OperatorMetrics
from exegpt_operator.work_queue import Queue

log = logging.getLogger(__name__)

LEASE = "exegpt-operator"
DEAF_S = 60.0  # renewals of our own Lease that no watch tells of: the watches are dead
HEALTH_PORT, METRICS_PORT = 8080, 9090
RESYNC_S = 300.0


@dataclass(slots=True)
class _Operator:
    """One process."""

    options: argparse.Namespace
    api: Api
    loop: Loop
    metrics: OperatorMetrics
    holder: str
    queue: Queue[Key] = field(init=False)
    is_active: bool = False
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    renewed_s: float = 0.0
    heard_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.queue = Queue(self._look)
        self.loop.named = self.queue.add

    def named(self, key: Key) -> None:
        """Something moved; whoever plans by a profile is concerned too."""
        self.queue.add(key)
        if key.kind == "profile":
            for other in self.queue.watched():
                if other.kind == "deployment" and other.namespace == key.namespace:
                    self.queue.add(other)

    async def _look(self, key: Key) -> float | None:
        self.metrics.keys.set(len(self.queue))
        if not self.is_active:
            return RENEW_S
        return await self.loop.look(key)

    async def hold_lease(self) -> None:
        """Keeps the Lease, or waits for it; for ever."""
        while True:
            try:
                held = await asyncio.to_thread(self._renew)
            except ApiRefused as error:
                log.warning("cannot renew the lease", extra={"problem": str(error)})
                held = False
            if held != self.is_active:
                log.info("active" if held else "not active: another operator holds the lease")
            self.is_active = held
            self.metrics.is_active.set(held)
            await asyncio.sleep(RENEW_S)

    def _renew(self) -> bool:
        namespace = self.options.namespace
        lease = self.api.get("Lease", namespace, LEASE)
        wanted = next_lease(
            lease, name=LEASE, namespace=namespace, holder=self.holder, now_s=time.time()
        )
        if wanted is None:
            return False
        try:
            created = lease is None and self.api.create(wanted)
            if not created:
                self.api.replace(wanted)
        except ApiRefused as error:
            if error.status == 409:  # another one was quicker
                return False
            raise
        self.renewed_s = time.monotonic()
        return True

    async def resync(self) -> None:
        """Names every resource there is now and then: what an event was lost of is looked at all the same."""
        while True:
            for word, (kind, _) in KINDS.items():
                for each in await asyncio.to_thread(self.api.list, kind, self._scope):
                    metadata = each["metadata"]
                    self.queue.add(Key(word, metadata["namespace"], metadata["name"]))
            await asyncio.sleep(RESYNC_S)

    @property
    def _scope(self) -> str | None:
        return None if self.options.cluster_wide else self.options.namespace

    def is_deaf(self) -> bool:
        """Whether our own renewals no longer come back by the watch."""
        return self.is_active and self.renewed_s > self.heard_s + DEAF_S

    async def health(self) -> None:
        """Answers /healthz and /readyz; for ever."""

        async def alive(_request: web.Request) -> web.Response:
            if self.is_deaf():
                return web.Response(status=503, text="the watches do not move\n")
            return web.Response(text="ok\n")

        app = web.Application()
        app.router.add_get("/healthz", alive)
        app.router.add_get("/readyz", alive)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "0.0.0.0", self.options.health_port).start()
        await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until told to end; the exit status."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # a line an event says nothing
    operator = _operator(options)
    start_http_server(options.metrics_port, registry=operator.metrics.registry)
    registry = kopf.OperatorRegistry()
    _watch(registry, operator)
    kopf.run(
        registry=registry,
        standalone=True,
        clusterwide=options.cluster_wide,
        namespaces=() if options.cluster_wide else (options.namespace,),
    )
    return 0


def _operator(options: argparse.Namespace) -> _Operator:
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]  # the library has no types
    except config.ConfigException:
        config.load_kube_config()  # type: ignore[no-untyped-call]  # nor here
    api = Api(client.ApiClient())
    images = Images(
        runner=options.runner_image,
        gateway=options.gateway_image or options.runner_image,
        pull_policy=options.pull_policy,
        pull_secrets=tuple(options.pull_secret),
        extra_claim=options.extra_claim,
        extra_python=options.extra_python,
    )
    metrics = OperatorMetrics(CollectorRegistry())
    planner = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
    looker = Looker(api, images, sees_nodes=options.cluster_wide)
    return _Operator(
        options=options,
        api=api,
        loop=Loop(looker, Actor(api), images, planner, metrics),
        metrics=metrics,
        holder=f"{socket.gethostname()}-{os.getpid()}",
    )


def _watch(registry: kopf.OperatorRegistry, operator: _Operator) -> None:
    """Tells kopf what to watch; every event only names a key."""

    @kopf.on.login(registry=registry)  # a registry of our own has none
    def login(**given: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**given)

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        settings.persistence.finalizer = "kopf.exegpt.invalid/none"  # never set: nothing forces one
        settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(
            prefix="kopf.exegpt.invalid"
        )
        settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
            prefix="kopf.exegpt.invalid"
        )
        settings.posting.enabled = False
        settings.scanning.disabled = not operator.options.cluster_wide
        settings.watching.server_timeout = 300
        settings.watching.client_timeout = 310
        settings.watching.connect_timeout = 30
        for work in (operator.hold_lease, operator.resync, operator.health):
            task = asyncio.get_running_loop().create_task(work())
            operator.tasks.append(task)
            task.add_done_callback(functools.partial(_end_with, work.__name__))

    for word, (_, plural) in KINDS.items():

        @kopf.on.event(names.GROUP, names.VERSION, plural, registry=registry, id=word)
        async def named(namespace: str | None, name: str, _word: Kind = word, **_: Any) -> None:
            operator.named(Key(_word, str(namespace), name))

    for group, version, plural in (
        ("apps", "v1", "statefulsets"),
        ("batch", "v1", "jobs"),
        ("", "v1", "pods"),
        ("", "v1", "services"),
        ("", "v1", "configmaps"),
    ):

        @kopf.on.event(
            group,
            version,
            plural,
            registry=registry,
            id=plural,
            labels={names.NAME_LABEL: "exegpt"},
        )
        async def child(namespace: str | None, labels: Any, **_: Any) -> None:
            for key in keys_of(str(namespace), labels):
                operator.queue.add(key)

    @kopf.on.event("coordination.k8s.io", "v1", "leases", registry=registry, id="lease")
    async def heard(namespace: str | None, name: str, **_: Any) -> None:
        if name == LEASE and namespace == operator.options.namespace:
            operator.heard_s = time.monotonic()


def _end_with(name: str, task: asyncio.Task[None]) -> None:
    """A part that ends takes the process with it: the kubelet starts it anew."""
    if not task.cancelled():
        log.error("%s has ended", name, exc_info=task.exception())
        os._exit(1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="exegpt_operator.main", description="The operator.")
    parser.add_argument("--namespace", required=True, help="its own, where its Lease lies")
    parser.add_argument("--cluster-wide", action="store_true", help="look after all namespaces")
    parser.add_argument("--runner-image", required=True, help="for workers, profiles and fetches")
    parser.add_argument("--gateway-image", default="", help="default: the runner's")
    parser.add_argument("--pull-policy", default="IfNotPresent")
    parser.add_argument("--pull-secret", action="append", default=[], metavar="NAME")
    parser.add_argument("--extra-claim", default="", help="a claim mounted at /opt/exegpt")
    parser.add_argument("--extra-python", default="", help="the interpreter in containers")
    parser.add_argument("--health-port", type=int, default=HEALTH_PORT)
    parser.add_argument("--metrics-port", type=int, default=METRICS_PORT)
    return parser


if __name__ == "__main__":
    sys.exit(main())
