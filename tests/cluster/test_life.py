"""A deployment's life on a real cluster, installed by helm: real pods, real tokens through the Service."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cluster.traffic import Client, counted
from cluster.whole import SERVING, Cluster, deployment
from exegpt_operator import names, talk
from exegpt_operator.look import token_of
from exegpt_operator.reading import managers_of
from exegpt_operator.seen import ServingSeen

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

NAMESPACE, NAME = SERVING, "translate"
READY_S = 600.0  # profiling some minutes, planning, loading torch and weights on two cores


@pytest.fixture(scope="module")
def client(installed: Cluster) -> Client:
    return Client.made(installed, NAMESPACE)


@pytest.mark.smoke
@pytest.mark.usefixtures("measured")
def test_tokens_by_waa_across_two_pods(installed: Cluster, client: Client) -> None:
    installed.plane.apply(deployment(NAMESPACE, NAME, scheduling={"strategies": ["WAA"]}))
    installed.wait_ready(NAMESPACE, NAME, within_s=READY_S)
    by_role = roles(installed)
    assert sorted(by_role) == ["decoder", "encoder"]
    encoder, decoder = (by_role[role]["status"]["podIP"] for role in ("encoder", "decoder"))
    before = client.metrics(NAME)["exegpt_kv_transfer_bytes_total"]
    with counted(encoder, decoder, names.WORKER_PORT) as sent:
        assert client.ask(NAME).strip()
        handed_over = client.metrics(NAME)["exegpt_kv_transfer_bytes_total"] - before
        assert 0 < handed_over < sent.bytes() < 2 * handed_over + 50_000


@pytest.mark.smoke
def test_a_decoder_killed_amid_transfers_loses_no_query(installed: Cluster, client: Client) -> None:
    text = client.ask(NAME, tokens=24)
    pod = roles(installed)["decoder"]
    load = client.load(NAME, streams=24, seconds=30, words=180, tokens=12)
    count = "exegpt_kv_transfer_seconds_count"
    first = client.metrics(NAME)[count]
    installed.wait_for(
        "under load", lambda: client.metrics(NAME)[count] > first + 8, within_s=60, tell=str
    )
    assert installed.node is not None
    installed.node.kill(pod, "worker-0", paused_s=1.0)
    fell_s = installed.wait_for(
        "not Ready", lambda: not is_ready(installed), within_s=15, tell=lambda: tell(installed)
    )
    installed.wait_ready(NAMESPACE, NAME, within_s=180)
    found = load.result(within_s=240)
    print(f"not Ready after {fell_s:.1f} s; {found}")
    assert found["failures"] == []
    assert found["answers"] >= 24
    failed = {
        name: value
        for name, value in client.metrics(NAME).items()
        if name.startswith("exegpt_kv_transfer_failures_total")
    }
    assert sum(failed.values()) > 0, "no transfer was under way"
    assert client.ask(NAME, tokens=24) == text
    assert roles(installed)["decoder"]["metadata"]["uid"] == pod["metadata"]["uid"]


def test_at_rest_nothing_is_written(installed: Cluster) -> None:
    """But the operator's own Lease, and kubelets' and controllers' own business."""
    installed.wait_for(
        "a minute without a write", lambda: is_quiet(installed, 60), within_s=200, tell=str
    )


@pytest.mark.smoke
def test_rra_on_the_same_pods(installed: Cluster, client: Client) -> None:
    text, before = client.ask(NAME), identity(installed)
    installed.plane.apply(deployment(NAMESPACE, NAME, scheduling={"strategies": ["RRA"]}))
    installed.wait_for(
        "RRA",
        lambda: plan(installed)["strategy"].startswith("RRA") and is_ready(installed),
        within_s=120,
        tell=lambda: tell(installed),
    )
    assert client.ask(NAME) == text
    assert identity(installed) == before
    assert list(roles(installed)) == ["both"]


@pytest.mark.smoke
def test_drift_is_answered_in_place_under_load(installed: Cluster, client: Client) -> None:
    before, first = identity(installed), plan(installed)
    load = client.load(NAME, streams=8, seconds=30, words=20, tokens=16)
    installed.wait_for(
        "under load",
        lambda: reported(installed).num_queries > 8,
        within_s=60,
        tell=lambda: tell(installed),
    )
    laws = {"input": "mean=24,std=8,max=48", "output": "mean=34,std=9,max=60"}
    annotations = [f"exegpt.dev/observed-{side}={law}" for side, law in laws.items()]
    installed.plane.kubectl("annotate", f"xd/{NAME}", "-n", NAMESPACE, *annotations)
    annotated_s = time.monotonic()
    installed.wait_for(
        "acknowledged",
        lambda: reported(installed).plan_id != first["id"],
        within_s=30,
        tell=lambda: tell(installed),
    )
    print(f"acknowledged {time.monotonic() - annotated_s:.2f} s after the annotation")
    installed.wait_for(
        "in the status",
        lambda: plan(installed)["id"] == reported(installed).plan_id and is_ready(installed),
        within_s=30,
        tell=lambda: tell(installed),
    )
    second = plan(installed)
    assert second["decodeIterations"] != first["decodeIterations"]
    in_force = client.metrics(NAME)["exegpt_schedule_encode_interval_iterations"]
    assert in_force == second["decodeIterations"]
    found = load.result(within_s=120)
    assert found["failures"] == []
    assert found["answers"] >= 8
    assert identity(installed) == before
    status = installed.plane.get("xd", NAME, "-n", NAMESPACE)["status"]
    assert status["workload"]["source"] == "Annotation"
    assert status["workload"]["setBy"] == "kubectl-annotate"
    assert [each["id"] for each in status["history"][:2]] == [second["id"], first["id"]]


def test_observed_lengths_are_planned_for_by_themselves(installed: Cluster, client: Client) -> None:
    """Where neither the spec nor a person says how long requests are."""
    before, first = identity(installed), plan(installed)
    annotations = [f"exegpt.dev/observed-{side}-" for side in ("input", "output")]
    installed.plane.kubectl("annotate", f"xd/{NAME}", "-n", NAMESPACE, *annotations)
    patch(installed, '{"spec":{"workload":null,"drift":{"minQueries":40,"cooldownSeconds":1}}}')
    load = client.load(NAME, streams=16, seconds=30, words=12, tokens=12)
    installed.wait_for(
        "planned for what was observed",
        lambda: plan(installed)["id"] != first["id"] and source(installed) == "Observed",
        within_s=90,
        tell=lambda: tell(installed),
    )
    found = load.result(within_s=120)
    assert found["failures"] == []
    installed.wait_ready(NAMESPACE, NAME, within_s=30)
    resource = installed.plane.get("xd", NAME, "-n", NAMESPACE, "--show-managed-fields")
    assert managers_of(resource)[names.OBSERVED_OUTPUT] == names.DETECTOR
    observed = names.observed(NAME, "output")
    assert resource["metadata"]["annotations"][names.OBSERVED_OUTPUT] == f"histogram={observed}"
    assert resource["status"]["workload"]["output"].startswith("mean=12")
    assert identity(installed) == before


def test_another_bound_is_another_plan(installed: Cluster, client: Client) -> None:
    before, first = identity(installed), plan(installed)
    patch(installed, '{"spec":{"latencyBound":{"seconds":4}}}')
    until_another_plan(installed, first["id"])
    assert plan(installed)["predictedSeconds"] <= 4
    assert client.ask(NAME).strip()
    assert identity(installed) == before


def test_operators_that_are_killed_or_upgraded_restart_no_pod(
    installed: Cluster, client: Client
) -> None:
    before = identity(installed)
    for bound_s in (3.5, 4.5):
        first = plan(installed)
        patch(installed, f'{{"spec":{{"latencyBound":{{"seconds":{bound_s}}}}}}}')
        (operator,) = installed.pods(SERVING, **{"app.kubernetes.io/name": "exegpt-operator"})
        name = operator["metadata"]["name"]
        installed.plane.kubectl(
            "delete", "pod", name, "-n", SERVING, "--grace-period=0", "--force", "--wait=false"
        )
        until_another_plan(installed, first["id"])
    installed.install(SERVING, **{"resources.limits.memory": "900Mi"})
    patch(installed, '{"spec":{"latencyBound":{"seconds":4}}}')
    installed.wait_ready(NAMESPACE, NAME, within_s=120)
    assert client.ask(NAME).strip()
    assert identity(installed) == before


def test_a_bound_that_nothing_keeps_leaves_what_runs_alone(
    installed: Cluster, client: Client
) -> None:
    before, first = identity(installed), plan(installed)
    patch(installed, '{"spec":{"latencyBound":{"seconds":0.001}}}')
    installed.wait_for(
        "refused",
        lambda: installed.condition(NAMESPACE, NAME, "Scheduled")[1] == "Infeasible",
        within_s=60,
        tell=lambda: tell(installed),
    )
    assert installed.condition(NAMESPACE, NAME, "Stalled")[0] == "True"
    assert plan(installed)["id"] == first["id"]
    assert identity(installed) == before
    assert client.ask(NAME).strip()
    patch(installed, '{"spec":{"latencyBound":{"seconds":4}}}')
    installed.wait_ready(NAMESPACE, NAME, within_s=60)


def test_suspend_resume_delete(installed: Cluster, client: Client) -> None:
    first, profiles = plan(installed), installed.plane.get("xp", "-n", NAMESPACE)["items"]
    patch(installed, '{"spec":{"suspend":true}}')
    installed.wait_for(
        "suspended",
        lambda: not installed.pods(NAMESPACE, component="worker"),
        within_s=60,
        tell=lambda: tell(installed),
    )
    assert installed.condition(NAMESPACE, NAME, "Ready")[1] == "Suspended"
    patch(installed, '{"spec":{"suspend":false}}')
    installed.wait_ready(NAMESPACE, NAME, within_s=180)
    assert plan(installed)["id"] == first["id"]
    after = installed.plane.get("xp", "-n", NAMESPACE)["items"]
    assert [each["metadata"]["uid"] for each in after] == [
        each["metadata"]["uid"] for each in profiles
    ]
    assert client.ask(NAME).strip()
    installed.plane.kubectl("delete", f"xd/{NAME}", "-n", NAMESPACE, "--timeout=20s")
    installed.wait_for(
        "gone",
        lambda: not installed.pods(NAMESPACE, **{"app.kubernetes.io/instance": NAME}),
        within_s=90,
        tell=lambda: str(installed.pods(NAMESPACE)),
    )


def until_another_plan(cluster: Cluster, first: str) -> None:
    """Until a plan other than `first` is in force."""
    cluster.wait_for(
        "another plan",
        lambda: plan(cluster)["id"] != first and is_ready(cluster),
        within_s=120,
        tell=lambda: tell(cluster),
    )


def patch(cluster: Cluster, merge: str) -> None:
    cluster.plane.kubectl("patch", f"xd/{NAME}", "-n", NAMESPACE, "--type=merge", "-p", merge)


def roles(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Worker pods by their live role; of those that share one, the last."""
    pods = cluster.pods(NAMESPACE, component="worker")
    return {pod["metadata"]["labels"].get("exegpt.dev/role", ""): pod for pod in pods}


def identity(cluster: Cluster) -> dict[str, tuple[Any, ...]]:
    """What would change if a serving pod, or a container in it, were started anew."""
    return {
        pod["metadata"]["name"]: (
            pod["metadata"]["uid"],
            *(
                (each["restartCount"], each["state"]["running"]["startedAt"])
                for each in pod["status"]["containerStatuses"]
            ),
        )
        for component in ("worker", "gateway")
        for pod in cluster.pods(NAMESPACE, component=component)
    }


def reported(cluster: Cluster) -> ServingSeen:
    """What the gateway says of itself, now."""
    (gateway,) = cluster.pods(NAMESPACE, component="gateway")
    token = token_of(cluster.api, NAMESPACE, names.token(NAME))
    return talk.report(gateway["status"]["podIP"], token, None)


def plan(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = cluster.plane.get("xd", NAME, "-n", NAMESPACE)["status"].get("plan", {})
    return found


def source(cluster: Cluster) -> str:
    """Whose lengths hold."""
    status = cluster.plane.get("xd", NAME, "-n", NAMESPACE)["status"]
    return str(status.get("workload", {}).get("source"))


def is_ready(cluster: Cluster) -> bool:
    return cluster.is_ready(NAMESPACE, NAME)


def tell(cluster: Cluster) -> str:
    return cluster.describe(NAMESPACE, NAME)


def is_quiet(cluster: Cluster, seconds: float) -> bool:
    """Whether nothing of ours is written for so long."""
    first, end_s = len(cluster.plane.writes()), time.monotonic() + seconds
    while time.monotonic() < end_s:
        if ours(cluster, first):
            return False
        time.sleep(0.5)
    return True


def ours(cluster: Cluster, first: int) -> list[str]:
    return [
        f"{each['verb']} {each['objectRef']['resource']}"
        for each in cluster.plane.writes(first)
        if each["user"]["username"] == f"system:serviceaccount:{NAMESPACE}:exegpt"
        and each["objectRef"]["resource"] != "leases"
    ]
