"""Killed at any of its writes and started again, over and over, the operator gets to where it would have got anyway."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest

from cluster import steps
from cluster.control_plane import ControlPlane
from cluster.dying_operator import DIES
from cluster.fake_node import FakeNodes
from cluster.place import NAME, until
from cluster.steps import HOME, LAW, OperatorProcess, Site, own_fields
from exegpt_operator import names
from exegpt_operator.look import WHY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

TIMES = ("lastTransitionTime", "time", "lastAttemptTime", "lastDetectionTime")
DEATHS = ("after:1", "before:2", "after:1", "before:1", "after:2")
FEWEST_DEATHS = 20


@dataclass(slots=True)
class Mortal:
    """An operator that is started again whenever it has died."""

    site: Site
    process: OperatorProcess
    num_deaths: int = 0
    left: int = 0  # deaths until it is let live
    stage: str = ""
    _deaths: Iterator[str] = field(default_factory=lambda: itertools.cycle(DEATHS))

    def is_up_in(self, stage: str) -> bool:
        """Sees to it that it runs, as a kubelet does: a container in place, whose Lease is still its own.

        With each new stage it is killed where it stands, and dies at some more of its writes.
        """
        if stage != self.stage:
            self.process.kill()
            self.stage, self.left = stage, DEATHS_OF[stage]
        if self.process.has_ended:
            self.process.kill()
            steps.free_lease(self.site.plane)
            self.process.start(**{DIES: next(self._deaths) if self.left > 0 else ""})
            self.num_deaths += 1
            self.left -= 1
        return True


Stage = tuple[str, Callable[[Site], None], Callable[[Site], bool]]


def num_plans(site: Site) -> int:
    return int(site.status().get("plan", {}).get("revision", 0))


def serves(num: int) -> Callable[[Site], bool]:
    """Whether the `num`th plan is what the gateway works by, and all is well."""
    return lambda site: (
        num_plans(site) == num and site.is_settled() and site.works_by() == site.plan_id()
    )


def is_suspended(site: Site) -> bool:
    return site.condition("Ready")[1] == "Suspended" and not site.serving()


LIFE: tuple[Stage, ...] = (
    ("applied", lambda site: site.apply(), serves(1)),
    (
        "changed",
        lambda site: site.patch(f"xd/{NAME}", workload={"output": LAW | {"mean": 30}}),
        serves(2),
    ),
    (
        "drifted",
        lambda site: site.annotate(input="mean=20,std=6,max=48", output="mean=32,std=8,max=64"),
        serves(3),
    ),
    ("suspended", lambda site: site.patch(f"xd/{NAME}", suspend=True), is_suspended),
    ("resumed", lambda site: site.patch(f"xd/{NAME}", suspend=False), serves(3)),
)
DEATHS_OF = {"applied": 9, "changed": 6, "drifted": 5, "suspended": 4, "resumed": 5}


def live(site: Site, is_up: Callable[[str], bool]) -> list[str]:
    """Leads the life; the pods of ours that were ever made, in the order of their stages."""
    made: list[str] = []
    for stage in LIFE:
        name, act, _ = stage
        act(site)
        site.until(name, partial(_is_over, site, stage, is_up))
        pods = {(pod, uid) for where, pod, uid in site.nodes.made if where == site.namespace}
        made.append(f"{name}: {sorted(pod.rpartition('-')[0] for pod, _ in pods)}")
    return made


def _is_over(site: Site, stage: Stage, is_up: Callable[[str], bool]) -> bool:
    name, _, is_done = stage
    return is_up(name) and is_done(site)


def differences(one: Any, other: Any) -> Any:
    """Where two JSON values differ, and how."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other})
        return {
            key: differences(one.get(key), other.get(key))
            for key in keys
            if one.get(key) != other.get(key)
        }
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [differences(a, b) for a, b in zip(one, other, strict=True) if a != b]
    return [one, other]


def end_state(site: Site) -> dict[str, Any]:
    """All that is there, but for times and what each cluster draws by chance."""
    found: dict[str, Any] = {"status": _timeless(site.status())}
    for kind in ("StatefulSet", "Service", "ConfigMap", "Secret", "Job", names.PROFILE):
        for child in _ours(site, kind):
            what = own_fields(child)
            is_drawn = kind in ("Secret", "Job")  # a token, and labels by the Job's uid
            found[f"{kind}/{what['metadata']['name']}"] = what["metadata"] if is_drawn else what
    text = json.dumps(found, sort_keys=True)
    return dict(json.loads(text.replace(site.namespace, "NAMESPACE")))


def _ours(site: Site, kind: str) -> list[dict[str, Any]]:
    if kind == "Secret":
        return [site.get("Secret", names.token(NAME))]
    return site.api.list(kind, site.namespace, {names.NAME_LABEL: "exegpt"})


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(each) for key, each in value.items() if key not in TIMES}
    return [_timeless(each) for each in value] if isinstance(value, list) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """One that was undisturbed, and one of an operator that was killed over and over."""

    calm: dict[str, Any]
    killed: dict[str, Any]
    pods_calm: list[str]
    pods_killed: list[str]
    num_deaths: int


@pytest.fixture(scope="module")
def lives(
    control_plane: ControlPlane, nodes: FakeNodes, tmp_path_factory: pytest.TempPathFactory
) -> Lives:
    folder = tmp_path_factory.mktemp("lives")
    control_plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
    kubeconfig = steps.operator_kubeconfig(control_plane)
    steps.free_lease(control_plane)
    operator = OperatorProcess(kubeconfig, folder / "calm.log", "--cluster-wide")
    calm = Site.made(control_plane, nodes, "calm")
    operator.start()
    try:
        pods_calm = live(calm, lambda _: True)
    finally:
        operator.stop()
    steps.free_lease(control_plane)
    killed = Site.made(control_plane, nodes, "killed")
    process = OperatorProcess(
        kubeconfig, folder / "log", "--cluster-wide", module="cluster.dying_operator"
    )
    mortal = Mortal(killed, process, num_deaths=-1)  # its first start is none
    try:
        pods_killed = live(killed, mortal.is_up_in)
        with contextlib.suppress(AssertionError):  # the tests say what differs
            until("the same", lambda: promised(killed) == promised(calm), within_s=30)
    finally:
        process.kill()
    return Lives(
        calm=end_state(calm),
        killed=end_state(killed),
        pods_calm=pods_calm,
        pods_killed=pods_killed,
        num_deaths=mortal.num_deaths,
    )


def promised(site: Site) -> Any:
    return without_words(end_state(site))


def without_words(value: Any) -> Any:
    """Without why each plan was made."""
    if isinstance(value, dict):
        history = [{**each, "reason": ""} for each in value.get("history", [])]
        kept = {key: without_words(each) for key, each in value.items() if key != WHY}
        return kept | ({"history": history} if history else {})
    return value


def test_the_end_is_the_same(lives: Lives) -> None:
    assert lives.num_deaths >= FEWEST_DEATHS
    found = differences(without_words(lives.calm), without_words(lives.killed))
    assert found == {}, json.dumps(found, indent=1)


def test_no_pod_is_made_anew(lives: Lives) -> None:
    assert lives.pods_killed == lives.pods_calm


def test_plans_say_why_they_were_made(lives: Lives) -> None:
    found = differences(lives.calm, lives.killed)
    assert found == {}, json.dumps(found, indent=1)
