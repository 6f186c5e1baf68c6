"""A deployment's life on a real cluster, installed by helm: real pods, real tokens through the Service."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cluster.whole import Cluster, deployment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

NAMESPACE = "serving"
READY_S = 600.0  # profiling two minutes, planning, loading torch and weights on two cores


@pytest.fixture(scope="module")
def installed(cluster: Cluster) -> Iterator[Cluster]:
    """The charts in a namespace that admits restricted pods only."""
    cluster.namespace(NAMESPACE)
    cluster.install(NAMESPACE)
    yield cluster
    cluster.plane.kubectl("delete", "xd", "--all", "-n", NAMESPACE, "--timeout=60s", check=False)


def answer(cluster: Cluster, *, tokens: int = 8) -> str:
    """The text of a completion, asked for by the official client inside the cluster, through the Service."""
    gateway = cluster.pods(NAMESPACE, component="gateway")[0]["metadata"]["name"]
    script = f"""
import openai
client = openai.OpenAI(base_url="http://translate.{NAMESPACE}.svc/v1", api_key="none")
print(client.completions.create(model="demo", prompt="The sun is", max_tokens={tokens}, temperature=0).choices[0].text)
"""
    return cluster.run_in(NAMESPACE, gateway, script)


def test_tokens_by_waa_across_two_pods(installed: Cluster) -> None:
    wanted = deployment(NAMESPACE, scheduling={"strategies": ["WAA"]})
    installed.plane.apply(wanted)
    installed.wait_ready(NAMESPACE, "translate", within_s=READY_S)
    assert answer(installed).strip()
    roles = {
        pod["metadata"]["name"]: pod["metadata"]["labels"]["exegpt.dev/role"]
        for pod in installed.pods(NAMESPACE, component="worker")
    }
    assert sorted(roles.values()) == ["decoder", "encoder"]
    metrics = metrics_of(installed)
    assert metrics["exegpt_kv_transfer_bytes_total"] > 0


def metrics_of(cluster: Cluster) -> dict[str, float]:
    """The gateway's metrics without labels."""
    gateway = cluster.pods(NAMESPACE, component="gateway")[0]
    script = (
        "import urllib.request as r;"
        f"print(r.urlopen('http://{gateway['status']['podIP']}:8000/metrics').read().decode())"
    )
    lines = cluster.run_in(NAMESPACE, gateway["metadata"]["name"], script).splitlines()
    return {
        name: float(value)
        for line in lines
        if line and not line.startswith("#") and "{" not in line
        for name, value in [line.split(" ", 1)]
    }


def test_at_rest_nothing_is_written(installed: Cluster) -> None:
    """But the operator's own Lease, and kubelets' and controllers' own business."""
    first = len(installed.plane.writes())
    with pytest.raises(AssertionError, match="not a write"):
        installed.wait_for("a write", lambda: bool(ours(installed, first)), within_s=60, tell=str)


def ours(cluster: Cluster, first: int) -> list[str]:
    return [
        f"{each['verb']} {each['objectRef']['resource']}"
        for each in cluster.plane.writes(first)
        if "serviceaccount:serving:exegpt" in each["user"]["username"]
        and each["objectRef"]["resource"] != "leases"
    ]


def test_rra_on_the_same_pods_and_drift_in_place(installed: Cluster) -> None:
    before = {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in installed.pods(NAMESPACE, component="worker")
    }
    installed.plane.apply(deployment(NAMESPACE, scheduling={"strategies": ["RRA"]}))
    installed.wait_for(
        "RRA",
        lambda: strategy(installed).startswith("RRA") and is_ready(installed),
        within_s=120,
        tell=lambda: installed.describe(NAMESPACE, "translate"),
    )
    first = plan_id(installed)
    for side, value in (("input", "mean=24,std=8"), ("output", "mean=30,std=9")):
        annotation = f"exegpt.dev/observed-{side}={value},max=60"
        installed.plane.kubectl("annotate", "xd/translate", "-n", NAMESPACE, annotation)
    installed.wait_for(
        "another plan",
        lambda: plan_id(installed) != first and is_ready(installed),
        within_s=60,
        tell=lambda: installed.describe(NAMESPACE, "translate"),
    )
    after = {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in installed.pods(NAMESPACE, component="worker")
    }
    assert after == before
    assert answer(installed).strip()


def status(cluster: Cluster) -> dict[str, object]:
    found: dict[str, object] = cluster.plane.get("xd", "translate", "-n", NAMESPACE)["status"]
    return found


def strategy(cluster: Cluster) -> str:
    return str(json.loads(json.dumps(status(cluster)))["plan"]["strategy"])


def plan_id(cluster: Cluster) -> str:
    return str(json.loads(json.dumps(status(cluster)))["plan"]["id"])


def is_ready(cluster: Cluster) -> bool:
    return cluster.condition(NAMESPACE, "translate", "Ready")[0] == "True"


def test_suspend_resume_delete(installed: Cluster) -> None:
    installed.plane.kubectl(
        "patch", "xd/translate", "-n", NAMESPACE, "--type=merge", "-p", '{"spec":{"suspend":true}}'
    )
    installed.wait_for(
        "suspended",
        lambda: not installed.pods(NAMESPACE, component="worker"),
        within_s=60,
        tell=lambda: installed.describe(NAMESPACE, "translate"),
    )
    assert installed.condition(NAMESPACE, "translate", "Ready")[1] == "Suspended"
    installed.plane.kubectl(
        "patch", "xd/translate", "-n", NAMESPACE, "--type=merge", "-p", '{"spec":{"suspend":false}}'
    )
    installed.wait_ready(NAMESPACE, "translate", within_s=180)
    installed.plane.kubectl("delete", "xd/translate", "-n", NAMESPACE, "--timeout=20s")
    installed.wait_for(
        "gone",
        lambda: not installed.pods(NAMESPACE, **{"app.kubernetes.io/instance": "translate"}),
        within_s=90,
        tell=lambda: str(installed.pods(NAMESPACE)),
    )
