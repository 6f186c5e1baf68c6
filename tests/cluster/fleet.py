"""Many deployments of one operator, and how long each takes, by the audit log and the fake gateways."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cluster.place import until, writes_of
from cluster.steps import LAW, OPERATOR, Site
from exegpt_operator import names

PODS = 3  # of each: two workers and a gateway
WITHIN_S = 600.0


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many deployments of one site, each with lengths of its own, so that no plan answers for two."""

    site: Site
    size: int
    first: int = 0
    strategies: tuple[str, ...] = ("RRA",)

    def names(self) -> list[str]:
        """Of all."""
        return [f"fleet-{self.first + index:02}" for index in range(self.size)]

    def one(self, index: int) -> Fleet:
        """A fleet of that one."""
        return replace(self, size=1, first=self.first + index)

    def profile(self) -> None:
        """Has the profile measured that all share."""
        self.site.apply("first")
        self.site.until_ready("first")
        self.site.delete("first")

    def apply(self, name: str) -> None:
        """Applies one."""
        workload = {"input": LAW, "output": self._law(name, 16)}
        scheduling = {"strategies": list(self.strategies)}
        self.site.apply(name, workload=workload, scheduling=scheduling)

    def annotate(self, name: str) -> None:
        """Says other lengths of one."""
        law = self._law(name, 30)
        words = ",".join(f"{key}={value:g}" for key, value in law.items())
        self.site.annotate(name, input="mean=20,std=6,max=48", output=words)

    def until_ready(self) -> None:
        """Until all serve."""
        for name in self.names():
            self.site.until_ready(name, within_s=WITHIN_S)

    def until_steered(self, since: int) -> None:
        """Until every gateway was given a plan beyond its first `since`."""
        until("all are steered", lambda: all(n > since for n in self._steered()), within_s=WITHIN_S)

    def _steered(self) -> list[int]:
        return [len(self.site.gateway(name).taken) for name in self.names()]

    def made_after_s(self) -> list[float]:
        """From each deployment's apply to its last worker pod."""
        log = self.site.plane.writes()
        applied = self._times(log, names.DEPLOYMENTS, self.names())
        return [
            max(
                self._times(log, "pods", [f"{names.workers(name)}-{ordinal}" for ordinal in (0, 1)])
            )
            - start_s
            for name, start_s in zip(self.names(), applied, strict=True)
        ]

    def steered_after_s(self) -> list[float]:
        """From each deployment's latest annotation to its gateway's hearing of the plan."""
        log = self.site.plane.writes()[::-1]
        said = self._times(log, names.DEPLOYMENTS, self.names())
        heard = [self.site.gateway(name).taken[-1][1] for name in self.names()]
        return [heard_s - said_s for heard_s, said_s in zip(heard, said, strict=True)]

    def writes(self, first: int) -> int:
        """Of the operator, but for its Lease, since line `first` of the audit log."""
        return len(writes_of(self.site.plane, OPERATOR, first))

    def _times(
        self, log: Sequence[dict[str, Any]], resource: str, wanted: Sequence[str]
    ) -> list[float]:
        """When a person, or a controller, first wrote each object by that log."""
        found: dict[str, float] = {}
        for each in log:
            where = each["objectRef"]
            is_here = where.get("namespace") == self.site.namespace
            is_it = where["resource"] == resource and not where.get("subresource")
            if is_here and is_it and each["user"]["username"] != OPERATOR:
                found.setdefault(where.get("name", ""), _seconds(each["requestReceivedTimestamp"]))
        return [found[name] for name in wanted]

    def _law(self, name: str, mean: float) -> dict[str, float]:
        return {"mean": mean + int(name[-2:]) / 10, "std": 8.0, "max": 64}


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
