"""A namespace on a real API server: what a person does there, sees, and waits for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kubernetes import config

from cluster.control_plane import ControlPlane
from exegpt_operator import names
from exegpt_operator.api import Api

Object = dict[str, Any]

NAME = "translate"
WITHIN_S = 60.0  # generous: nothing here is about time


def writes_of(plane: ControlPlane, user: str, first: int) -> list[str]:
    """What a user wrote since line `first` of the audit log, but for its Lease."""
    return [
        f"{each['verb']} {each['objectRef']['resource']}"
        for each in plane.writes(first)
        if each["user"]["username"] == user and each["objectRef"]["resource"] != "leases"
    ]


def until(
    what: str,
    holds: Callable[[], bool],
    *,
    within_s: float = WITHIN_S,
    tell: Callable[[], str] = str,
) -> float:
    """Seconds until it holds, by polling; fails with what `tell` says."""
    begin_s = time.monotonic()
    while not holds():
        is_late = time.monotonic() > begin_s + within_s
        assert not is_late, f"not {what} within {within_s:g} s\n{tell()}"
        time.sleep(0.1)
    return time.monotonic() - begin_s


@dataclass(slots=True)
class Place:
    """The namespace."""

    plane: ControlPlane
    namespace: str
    api: Api = field(init=False)  # the operator's own client, as the administrator

    def __post_init__(self) -> None:
        configured = config.new_client_from_config(  # type: ignore[no-untyped-call]  # no types there
            str(self.plane.kubeconfig)
        )
        self.api = Api(configured)

    # What a person does.

    def kubectl(self, *arguments: str, check: bool = True) -> str:
        """Runs kubectl here; what it said."""
        done = self.plane.kubectl(*arguments, "-n", self.namespace, check=False)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def patch(self, what: str, **spec: Any) -> None:
        """Merges into the spec of `kind/name`."""
        self.kubectl("patch", what, "--type=merge", "-p", json.dumps({"spec": spec}))

    def annotate(self, name: str = NAME, **values: str | None) -> None:
        """Sets exegpt.dev/observed-{input,output}, or removes what is None."""
        said = [
            f"{names.GROUP}/observed-{side}" + ("-" if value is None else f"={value}")
            for side, value in values.items()
        ]
        self.kubectl("annotate", f"xd/{name}", "--overwrite", *said)

    def delete(self, name: str = NAME) -> None:
        """Deletes the deployment, and sees it gone at once: nothing of ours holds it."""
        self.kubectl("delete", f"xd/{name}", "--timeout=10s")

    # What a person sees.

    def get(self, kind: str, name: str) -> Object:
        """An object that must be there."""
        found = self.api.get(kind, self.namespace, name)
        assert found is not None, f"no {kind} {name}"
        return found

    def status(self, name: str = NAME) -> Object:
        """The deployment's."""
        found: Object = self.get(names.DEPLOYMENT, name).get("status", {})
        return found

    def condition(self, kind: str, name: str = NAME) -> tuple[str, str, str]:
        """(status, reason, message) of a condition of the deployment."""
        for each in self.status(name).get("conditions", []):
            if each["type"] == kind:
                return each["status"], each["reason"], each["message"]
        return "", "", ""

    def pods(self, component: str, name: str = NAME) -> list[Object]:
        """The deployment's, of one component."""
        return self.api.list("Pod", self.namespace, names.selector(name, component))

    def serving(self, name: str = NAME) -> dict[str, str]:
        """Workers and gateways: uid by name."""
        pods = [*self.pods("worker", name), *self.pods("gateway", name)]
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}

    def plan_id(self, name: str = NAME) -> str:
        """Of the plan in force, by the status."""
        return str(self.status(name).get("plan", {}).get("id", ""))

    def is_settled(self, name: str = NAME) -> bool:
        """Whether what was asked for last is served."""
        found = self.get(names.DEPLOYMENT, name)
        status, generation = found.get("status", {}), found["metadata"]["generation"]
        conditions = {each["type"]: each for each in status.get("conditions", [])}
        is_current = status.get("observedGeneration") == generation
        return bool(is_current and conditions["Ready"]["status"] == "True")

    # Waiting.

    def until(
        self, what: str, holds: Callable[[], bool], *, name: str = NAME, within_s: float = WITHIN_S
    ) -> float:
        """Seconds until it holds, by polling; a failure shows the deployment."""
        return until(what, holds, within_s=within_s, tell=lambda: self.described(name))

    def until_ready(self, name: str = NAME, *, within_s: float = WITHIN_S) -> float:
        """Seconds until what was asked for last is served."""
        return self.until("Ready", lambda: self.is_settled(name), name=name, within_s=within_s)

    def until_another_plan(
        self, before: str, name: str = NAME, *, within_s: float = WITHIN_S
    ) -> float:
        """Seconds until the plan in force is not `before`, and is served."""

        def is_served() -> bool:
            return self.plan_id(name) not in ("", before) and self.is_settled(name)

        return self.until("another plan, served", is_served, name=name, within_s=within_s)

    def until_reason(
        self, kind: str, reason: str, name: str = NAME, *, within_s: float = WITHIN_S
    ) -> str:
        """Until a condition has a reason; its message."""
        self.until(
            f"{kind} {reason}",
            lambda: self.condition(kind, name)[1] == reason,
            name=name,
            within_s=within_s,
        )
        return self.condition(kind, name)[2]

    def described(self, name: str = NAME) -> str:
        """All that helps to see why."""
        shown = [
            self.kubectl(*what, check=False)[-4000:]
            for what in (
                ("get", "xd", name, "-o", "yaml", "--show-managed-fields=false"),
                ("get", "xp,pods,sts,jobs,cm", "-o", "wide"),
                ("get", "events"),
                (
                    "logs",
                    "-l",
                    f"{names.NAME_LABEL}=exegpt",
                    "--all-containers",
                    "--tail=15",
                    "--prefix",
                ),
            )
        ]
        return "\n".join(shown)
