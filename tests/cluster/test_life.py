"""A deployment's life on a real cluster, installed by helm: real pods, real tokens through the Service."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cluster.place import NAME, Place, until, writes_of
from cluster.traffic import Client, counted
from cluster.whole import SERVING, Cluster, deployment
from exegpt_operator import names, talk
from exegpt_operator.look import token_of
from exegpt_operator.observed import HISTOGRAM_FILE
from exegpt_operator.reading import managers_of
from exegpt_operator.seen import ServingSeen
from exegpt_planner.manifest import Histogram

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2400)]

XD = f"xd/{NAME}"
LOADED_S = 240.0  # torch and weights on two cores
OPERATOR = f"system:serviceaccount:{SERVING}:exegpt"


@pytest.fixture(scope="module")
def place(installed: Cluster) -> Place:
    return Place(installed.plane, SERVING)


@pytest.fixture(scope="module")
def client(place: Place) -> Client:
    return Client.made(place)


@pytest.mark.smoke
@pytest.mark.usefixtures("measured")
def test_tokens_by_waa_across_two_pods(place: Place, client: Client) -> None:
    place.plane.apply(deployment(SERVING, scheduling={"strategies": ["WAA"]}))
    print(f"served {place.until_ready(within_s=LOADED_S):.0f} s after it was applied")
    for shown in ("get xd -o wide", "get pods -L exegpt.dev/role", "describe xd"):
        print(f"$ kubectl {shown}\n{place.kubectl(*shown.split())}")
    by_role = roles(place)
    assert sorted(by_role) == ["decoder", "encoder"]
    encoder, decoder = (by_role[role]["status"]["podIP"] for role in ("encoder", "decoder"))
    before = client.metrics(NAME)["exegpt_kv_transfer_bytes_total"]
    with counted(encoder, decoder, names.WORKER_PORT) as sent:
        assert client.ask(NAME).strip()
        handed_over = client.metrics(NAME)["exegpt_kv_transfer_bytes_total"] - before
        assert 0 < handed_over < sent.bytes() < 2 * handed_over + 50_000


@pytest.mark.smoke
def test_a_decoder_killed_amid_transfers_loses_no_query(
    installed: Cluster, place: Place, client: Client
) -> None:
    text = client.ask(NAME, tokens=24)
    pod = roles(place)["decoder"]
    load = client.load(NAME, streams=24, seconds=30, words=180, tokens=12)
    count = "exegpt_kv_transfer_seconds_count"
    first = client.metrics(NAME)[count]
    place.until("under load", lambda: client.metrics(NAME)[count] > first + 8)
    installed.node.kill(pod, "worker-0", paused_s=1.0)
    fell_s = place.until("not Ready", lambda: not place.is_settled(), within_s=15)
    place.until_ready(within_s=LOADED_S)
    found = load.result(within_s=240)
    print(f"not Ready {fell_s:.1f} s after a decoder was killed; {found}")
    assert found["failures"] == []
    assert found["answers"] >= 24
    failed = {
        name: value
        for name, value in client.metrics(NAME).items()
        if name.startswith("exegpt_kv_transfer_failures_total")
    }
    assert sum(failed.values()) > 0, "no transfer was under way"
    assert client.ask(NAME, tokens=24) == text
    assert roles(place)["decoder"]["metadata"]["uid"] == pod["metadata"]["uid"]


def test_at_rest_nothing_is_written(place: Place) -> None:
    """But the operator's own Lease, and kubelets' and controllers' own business."""
    until("a minute without a write", lambda: is_quiet(place, 60), within_s=200)


@pytest.mark.smoke
def test_rra_on_the_same_pods(place: Place, client: Client) -> None:
    text, before, first = client.ask(NAME), identity(place), place.plan_id()
    place.plane.apply(deployment(SERVING, scheduling={"strategies": ["RRA"]}))
    print(f"WAA to RRA in {place.until_another_plan(first):.1f} s")
    assert plan(place)["strategy"].startswith("RRA")
    assert client.ask(NAME) == text
    assert identity(place) == before
    assert list(roles(place)) == ["both"]


@pytest.mark.smoke
def test_drift_is_answered_in_place_under_load(place: Place, client: Client) -> None:
    before, first = identity(place), plan(place)
    load = client.load(NAME, streams=8, seconds=30, words=20, tokens=16)
    place.until("under load", lambda: reported(place).num_queries > 8)
    place.annotate(input="mean=24,std=8,max=48", output="mean=34,std=9,max=60")
    took_s = place.until("acknowledged", lambda: reported(place).plan_id != first["id"])
    print(f"acknowledged {took_s:.2f} s after the annotation")
    place.until_another_plan(first["id"])
    second = plan(place)
    assert second["id"] == reported(place).plan_id
    assert second["decodeIterations"] != first["decodeIterations"]
    in_force = client.metrics(NAME)["exegpt_schedule_encode_interval_iterations"]
    assert in_force == second["decodeIterations"]
    found = load.result(within_s=120)
    assert found["failures"] == []
    assert found["answers"] >= 8
    assert identity(place) == before
    status = place.status()
    assert status["workload"]["source"] == "Annotation"
    assert status["workload"]["setBy"] == "kubectl-annotate"
    assert [each["id"] for each in status["history"][:2]] == [second["id"], first["id"]]


def test_observed_lengths_are_planned_for_by_themselves(place: Place, client: Client) -> None:
    """Where neither the spec nor a person says how long requests are."""
    before, first = identity(place), place.plan_id()
    place.annotate(input=None, output=None)
    place.patch(XD, workload=None, drift={"minQueries": 40, "cooldownSeconds": 1})
    load = client.load(NAME, streams=16, seconds=30, words=12, tokens=12)
    place.until("planned for what was observed", lambda: is_by_observed(place, first), within_s=90)
    found = load.result(within_s=120)
    assert found["failures"] == []
    place.until_ready()
    resource, observed = place.get(names.DEPLOYMENT, NAME), names.observed(NAME, "output")
    assert managers_of(resource)[names.OBSERVED_OUTPUT] == names.DETECTOR
    assert resource["metadata"]["annotations"][names.OBSERVED_OUTPUT] == f"histogram={observed}"
    place.until("status says so", lambda: says(place) == observed_words(place, observed))
    assert identity(place) == before


def test_another_bound_is_another_plan(place: Place, client: Client) -> None:
    before, first = identity(place), place.plan_id()
    place.patch(XD, latencyBound={"seconds": 4})
    place.until_another_plan(first)
    assert plan(place)["predictedSeconds"] <= 4
    assert client.ask(NAME).strip()
    assert identity(place) == before


def test_operators_that_are_killed_or_upgraded_restart_no_pod(
    installed: Cluster, place: Place, client: Client
) -> None:
    before = identity(place)
    for bound_s in (3.5, 4.5):
        first = place.plan_id()
        place.patch(XD, latencyBound={"seconds": bound_s})
        selected = f"{names.NAME_LABEL}=exegpt-operator"
        place.kubectl(
            "delete", "pod", "-l", selected, "--grace-period=0", "--force", "--wait=false"
        )
        place.until_another_plan(first, within_s=120)
    installed.install(SERVING, **{"resources.limits.memory": "900Mi"})
    installed.helm("test", "exegpt", "-n", SERVING)
    place.patch(XD, latencyBound={"seconds": 4})
    place.until_ready(within_s=120)
    assert client.ask(NAME).strip()
    assert identity(place) == before


def test_a_bound_that_nothing_keeps_leaves_what_runs_alone(place: Place, client: Client) -> None:
    before, first = identity(place), place.plan_id()
    place.patch(XD, latencyBound={"seconds": 0.001})
    place.until_reason("Scheduled", "Infeasible")
    assert place.condition("Stalled")[0] == "True"
    assert place.plan_id() == first
    assert identity(place) == before
    assert client.ask(NAME).strip()
    place.patch(XD, latencyBound={"seconds": 4})
    place.until_ready()


def test_suspend_resume_delete(place: Place, client: Client) -> None:
    first, profiles = place.plan_id(), profile_uids(place)
    place.patch(XD, suspend=True)
    place.until("suspended", lambda: not place.pods("worker"))
    assert place.condition("Ready")[1] == "Suspended"
    place.patch(XD, suspend=False)
    print(f"served {place.until_ready(within_s=LOADED_S):.0f} s after it was resumed")
    assert place.plan_id() == first
    assert profile_uids(place) == profiles
    assert client.ask(NAME).strip()
    place.delete()
    place.until("gone", lambda: not place.serving(), within_s=90)


def roles(place: Place) -> dict[str, dict[str, Any]]:
    """Worker pods by their live role; of those that share one, the last."""
    return {
        pod["metadata"]["labels"].get(names.ROLE_LABEL, ""): pod for pod in place.pods("worker")
    }


def identity(place: Place) -> dict[str, tuple[Any, ...]]:
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
        for pod in place.pods(component)
    }


def reported(place: Place) -> ServingSeen:
    """What the gateway says of itself, now."""
    (gateway,) = place.pods("gateway")
    token = token_of(place.api, SERVING, names.token(NAME))
    return talk.report(gateway["status"]["podIP"], token, None)


def plan(place: Place) -> dict[str, Any]:
    found: dict[str, Any] = place.status()["plan"]
    return found


def profile_uids(place: Place) -> list[str]:
    return [each["metadata"]["uid"] for each in place.api.list(names.PROFILE, SERVING)]


def says(place: Place) -> str:
    return str(place.status()["workload"]["output"])


def observed_words(place: Place, config_map: str) -> str:
    """The status's words for a histogram that holds the answers of this test, of 12 tokens each."""
    found = Histogram.model_validate_json(
        place.get("ConfigMap", config_map)["data"][HISTOGRAM_FILE]
    )
    counts = dict(zip(found.lengths, found.counts, strict=True))
    assert counts[12] >= 16, "every stream of this test has been answered"
    mean = sum(length * count for length, count in counts.items()) / sum(counts.values())
    return f"mean={mean:.1f} max={max(counts)}, a histogram of {len(counts)} lengths"


def is_by_observed(place: Place, first: str) -> bool:
    """Whether another plan than `first` is in force, for lengths that were observed."""
    source = place.status().get("workload", {}).get("source")
    return source == "Observed" and place.plan_id() != first


def is_quiet(place: Place, seconds: float) -> bool:
    """Whether nothing of the operator's is written for so long."""
    first, end_s = len(place.plane.writes()), time.monotonic() + seconds
    while time.monotonic() < end_s:
        if writes_of(place.plane, OPERATOR, first):
            return False
        time.sleep(0.5)
    return True
