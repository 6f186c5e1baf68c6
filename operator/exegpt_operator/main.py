"""The operator's process: kopf watches, one queue works, a Lease says who may act, health says whether all moves.

Only `on.event` and `on.startup`: no timers, daemons or delete handlers, which would force finalizers, and no state of
kopf's on our resources. `python -m exegpt_operator.main --runner-image … --gateway-image …`
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import kopf
from kubernetes import client, config
from prometheus_client import CollectorRegistry, disable_created_metrics, start_http_server
from urllib3 import Retry

from exegpt_operator import logs, names
from exegpt_operator.act import Actor
from exegpt_operator.api import Api
from exegpt_operator.look import Looker
from exegpt_operator.loop import KINDS, Key, Kind, Loop, keys_of
from exegpt_operator.manifests.images import Images
from exegpt_operator.metrics import OperatorMetrics
from exegpt_operator.planner_process import Planner
from exegpt_operator.process import LEASE, Process

HEALTH_PORT, METRICS_PORT = 8080, 9090
THREADS = 16  # calls that block at a time: looks wait for pods that do not answer
# Reads over a connection that was closed meanwhile; what a write has done is looked at, and decided anew.
RETRIES = Retry(1, allowed_methods=["GET"], respect_retry_after_header=False, raise_on_status=False)
QUIET_S = 70.0  # of a watch, until it is made anew: the API server sends a bookmark a minute
CHILDREN = (
    ("apps", "v1", "statefulsets"),
    ("batch", "v1", "jobs"),
    ("", "v1", "pods"),
    ("", "v1", "services"),
    ("", "v1", "configmaps"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until told to end; the exit status."""
    options = _parser().parse_args(arguments)
    logs.configure()
    disable_created_metrics()  # type: ignore[no-untyped-call]  # twice the series, for nothing
    metrics = OperatorMetrics(CollectorRegistry())
    start_http_server(options.metrics_port, registry=metrics.registry)
    process = made(options, metrics)
    kopf.run(
        registry=watches(options, process),
        standalone=True,
        clusterwide=options.cluster_wide,
        namespaces=() if options.cluster_wide else (options.namespace,),
    )
    if not process.is_quiet:
        logging.shutdown()
        os._exit(0)  # a call that is under way in a thread is not waited for
    return 0


def made(options: argparse.Namespace, metrics: OperatorMetrics) -> Process:
    """An operator, not started."""
    try:
        config.load_incluster_config()  # type: ignore[no-untyped-call]  # the library has no types
    except config.ConfigException:
        config.load_kube_config()  # type: ignore[no-untyped-call]  # nor here
    configuration = client.Configuration.get_default_copy()
    configuration.retries = RETRIES
    api = Api(client.ApiClient(configuration), called=metrics.called)
    images = Images(
        runner=options.runner_image,
        gateway=options.gateway_image or options.runner_image,
        pull_policy=options.pull_policy,
        pull_secrets=tuple(options.pull_secret),
        extra_claim=options.extra_claim,
        extra_python=options.extra_python,
    )
    threads = ThreadPoolExecutor(THREADS)
    looker = Looker(api, images, sees_nodes=options.cluster_wide)
    planner = Planner()
    loop = Loop(looker, Actor(api), images, planner, metrics, threads)
    return Process(api, loop, metrics, planner=planner, threads=threads)


def watches(options: argparse.Namespace, process: Process) -> kopf.OperatorRegistry:
    """What kopf is to watch; every event only names a key."""
    registry = kopf.OperatorRegistry()
    holder = f"{socket.gethostname()}-{os.getpid()}"

    @kopf.on.login(registry=registry)  # a registry of our own has none
    def login(**given: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_via_client(**given)

    @kopf.on.startup(registry=registry)
    async def start(settings: kopf.OperatorSettings, **_: Any) -> None:
        configure(settings, clusterwide=options.cluster_wide)
        scope = None if options.cluster_wide else options.namespace
        process.start(
            namespace=options.namespace,
            holder=holder,
            scope=scope,
            health_port=options.health_port,
        )

    @kopf.on.cleanup(registry=registry)
    async def end(**_: Any) -> None:
        await process.end(namespace=options.namespace, holder=holder)

    for word, (_, plural) in KINDS.items():

        @kopf.on.event(names.GROUP, names.VERSION, plural, registry=registry, id=word)
        async def named(namespace: str | None, name: str, _word: Kind = word, **_: Any) -> None:
            process.named(Key(_word, str(namespace), name))

    for group, version, plural in CHILDREN:

        @kopf.on.event(group, version, plural, registry=registry, id=plural)
        async def child(namespace: str | None, labels: Any, **_: Any) -> None:
            for key in keys_of(str(namespace), labels):
                process.named(key)  # a profiling pod that ends frees devices for deployments

    @kopf.on.event("coordination.k8s.io", "v1", "leases", registry=registry, id="lease")
    async def heard(namespace: str | None, name: str, **_: Any) -> None:
        if name == LEASE and namespace == options.namespace:
            process.health.heard()

    return registry


def configure(settings: kopf.OperatorSettings, *, clusterwide: bool) -> None:
    """Nothing of kopf's is written anywhere, and its watches end when they are dead."""
    settings.persistence.finalizer = "kopf.exegpt.invalid/none"  # never set: nothing forces one
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(
        prefix="kopf.exegpt.invalid"
    )
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(
        prefix="kopf.exegpt.invalid"
    )
    settings.posting.enabled = False
    settings.scanning.disabled = not clusterwide
    settings.networking.request_timeout = 60
    watching = settings.watching
    watching.server_timeout, watching.client_timeout, watching.connect_timeout = 300, 310, 30
    watching.inactivity_timeout = QUIET_S
    for group, version, plural in CHILDREN:  # not every pod of the cluster
        watching.label_selectors[group, version, plural] = f"{names.NAME_LABEL}=exegpt"
    watching.field_selectors["coordination.k8s.io", "v1", "leases"] = f"metadata.name={LEASE}"


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
