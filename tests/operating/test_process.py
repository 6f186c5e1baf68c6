"""The operator as it runs: kopf's watches on an API server of this process, the Lease, health, logs and the end."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import kopf
import pytest
from kubernetes.config import kube_config
from prometheus_client import CollectorRegistry

from exegpt_operator import health, main, process
from exegpt_operator.metrics import OperatorMetrics
from exegpt_operator.process import LEASE, Process
from operator_api import ApiServer, deployment_path, serving
from operator_world import resource

NAMESPACE = "nlp"
LEASE_PATH = f"{NAMESPACE}/leases/{LEASE}"


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with serving() as found:
        path = str(found.kubeconfig(tmp_path))
        monkeypatch.setenv("KUBECONFIG", path)
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", path)  # read at import
        found.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def asked(port: int, path: str) -> tuple[int, str]:
    """Status and text; status 0 where nobody answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return 0, ""


async def until(holds: Callable[[], bool], *, within_s: float = 40.0) -> None:
    async with asyncio.timeout(within_s):
        while not holds():
            await asyncio.sleep(0.01)


def has_heard(made: Process, since_s: float) -> bool:
    return made.health.watch_age_s < time.monotonic() - since_s


def ready(api: ApiServer) -> tuple[str, str]:
    status = api.objects[deployment_path()].get("status", {})
    found = {each["type"]: each for each in status.get("conditions", [])}
    return (found["Ready"]["status"], found["Ready"]["reason"]) if found else ("", "")


@asynccontextmanager
async def running(
    monkeypatch: pytest.MonkeyPatch, *, deaf_after: int = 10_000
) -> AsyncIterator[tuple[Process, int]]:
    """An operator in this process, which renews twenty times a second; its health's port."""
    monkeypatch.setattr(process, "RENEW_S", 0.05)
    monkeypatch.setattr(process, "LEASE_S", process.MARGIN_S + 1.0)
    monkeypatch.setattr(health, "DEAF_AFTER", deaf_after)  # renewals
    port = free_port()
    options = Namespace(
        namespace=NAMESPACE,
        cluster_wide=True,
        runner_image="runner:1",
        gateway_image="",
        pull_policy="Always",
        pull_secret=[],
        extra_claim="",
        extra_python="",
        health_port=port,
    )
    made = main.made(options, OperatorMetrics(CollectorRegistry()))
    stop = asyncio.Event()
    work = kopf.operator(
        registry=main.watches(options, made),
        standalone=True,
        clusterwide=True,
        stop_flag=stop,
    )
    task = asyncio.create_task(work)
    try:
        yield made, port
    finally:
        stop.set()
        await asyncio.wait_for(task, 20)
    assert made.is_quiet


async def test_it_is_ready_hears_of_resources_and_gives_the_lease_back(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.refuses["GET", "exegptprofiles"] = (500, "etcd is away")
    async with running(monkeypatch) as (made, port):
        await until(lambda: made.is_active)
        assert await asyncio.to_thread(asked, port, "/healthz") == (200, "ok\n")
        await until(lambda: made.health.lacking() == "the resources: not listed yet")
        status, text = await asyncio.to_thread(asked, port, "/readyz")
        assert (status, text) == (503, "the resources: not listed yet\n")
        api.refuses.clear()
        await until(lambda: not made.health.lacking())
        assert await asyncio.to_thread(asked, port, "/readyz") == (200, "ok\n")
        api.put(resource())
        await until(lambda: ready(api) == ("False", "MissingClaim"))
        assert api.objects[LEASE_PATH]["spec"]["holderIdentity"] != ""
    assert api.objects[LEASE_PATH]["spec"]["holderIdentity"] == ""


async def test_dead_watches_end_its_health_and_what_it_hears_mends_it(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(monkeypatch, deaf_after=12) as (made, port):
        await until(lambda: made.is_active and not made.health.lacking())
        api.is_mute = True
        await until(lambda: made.health.problem() != "")
        status, text = await asyncio.to_thread(asked, port, "/healthz")
        assert status == 503
        assert "renewals of the lease went unheard" in text
        api.is_mute = False
        await until(lambda: made.health.problem() == "")


async def test_one_that_waits_for_the_lease_is_ready_alive_and_writes_nothing(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    api.put(resource())
    renewed = {"holderIdentity": "another", "leaseDurationSeconds": 3600}

    def renew() -> None:
        api.put(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": LEASE, "namespace": NAMESPACE},
                "spec": renewed | {"renewTime": f"{time.strftime('%Y-%m-%dT%H:%M:%S')}.000000Z"},
            }
        )

    renew()
    async with running(monkeypatch, deaf_after=12) as (made, _port):
        await until(lambda: not made.health.lacking())
        for _ in range(40):
            begin_s = time.monotonic()
            renew()
            await until(functools.partial(has_heard, made, begin_s))
            assert made.health.problem() == ""
        assert not made.is_active
        assert ready(api) == ("", "")
        api.objects[LEASE_PATH]["spec"]["holderIdentity"] = ""  # the other one has ended
        await until(lambda: ready(api) == ("False", "MissingClaim"))
    assert {call for call in api.calls if call[0] == "POST"} <= {
        ("POST", path) for path in api.objects
    }


async def test_an_api_server_that_is_away_for_a_while_ends_nothing(
    api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(monkeypatch) as (made, port):
        await until(lambda: made.is_active and not made.health.lacking())
        api.refuses["GET", "leases"] = (500, "etcd is away")
        await until(lambda: not made.is_active)
        assert await asyncio.to_thread(asked, port, "/healthz") == (200, "ok\n")
        api.refuses.clear()
        await until(lambda: made.is_active)


@pytest.fixture
def operator(api: ApiServer, tmp_path: Path) -> Iterator[tuple[Any, int, int, Path]]:
    """One in a process of its own, as it is deployed: itself, its ports, what it says."""
    ports = free_port(), free_port()
    command = [sys.executable, "-m", "exegpt_operator.main", f"--namespace={NAMESPACE}"]
    command += ["--runner-image=runner:1"]
    command += [f"--health-port={ports[0]}", f"--metrics-port={ports[1]}"]
    with (tmp_path / "log").open("wb") as log:
        running = subprocess.Popen(
            command, env=os.environ.copy(), stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield running, *ports, tmp_path / "log"
    finally:
        running.kill()
        running.wait()


async def test_as_a_process_it_speaks_json_and_ends_in_seconds(
    api: ApiServer, operator: tuple[Any, int, int, Path]
) -> None:
    running, port, metrics, log = operator
    await until(lambda: asked(port, "/readyz")[0] == 200)
    api.put(resource())
    await until(lambda: ready(api)[1] == "MissingClaim")
    counted = 'exegpt_operator_deployments{reason="MissingClaim"} 1.0'
    await until(lambda: counted in asked(metrics, "/metrics")[1])
    running.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(running.wait, 20) == 0
    assert api.objects[LEASE_PATH]["spec"]["holderIdentity"] == ""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert all({"ts", "level", "logger", "msg"} <= line.keys() for line in lines)
    assert {line["msg"] for line in lines} >= {"active", "the lease is released"}
    assert not [line for line in lines if line["level"] in ("error", "critical")], lines


async def test_a_call_that_hangs_does_not_hold_up_the_end_and_leaves_the_lease_to_run_out(
    api: ApiServer, operator: tuple[Any, int, int, Path]
) -> None:
    running, port, _, log = operator
    await until(lambda: asked(port, "/readyz")[0] == 200)
    api.hangs.add(("GET", "persistentvolumeclaims"))
    api.put(resource())
    await until(lambda: ("GET", f"{NAMESPACE}/persistentvolumeclaims/weights") in api.calls)
    running.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(running.wait, 20) == 0
    assert api.objects[LEASE_PATH]["spec"]["holderIdentity"] != ""
    assert "a call is still under way" in log.read_text()
