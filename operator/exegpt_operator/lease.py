"""One active operator: who holds the Lease acts, the others wait until it ends.

A Lease lies in its operator's namespace and says what it looks after. Of two operators in one namespace, who holds the
Lease acts; a namespace with an operator of its own is that one's; of two that look after all of them, the older.
Pure: the process reads, asks and replaces, and the API server's resource version decides between two holders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from exegpt_operator.names import GROUP

SCOPE_LABEL = f"{GROUP}/scope"
Scope = Literal["cluster", "namespace"]
LEASE_S = 15
RENEW_S = 5.0


def next_lease(
    lease: Mapping[str, Any] | None,
    *,
    name: str,
    namespace: str,
    holder: str,
    scope: Scope,
    now_s: float,
) -> dict[str, Any] | None:
    """The Lease to write so that `holder` holds it; None while another one does."""
    spec = {} if lease is None else lease.get("spec", {})
    before = spec.get("holderIdentity")
    if before not in (None, "", holder) and now_s < _ends_s(spec):
        return None
    now = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    took = spec.get("acquireTime", now) if before == holder else now
    metadata: dict[str, Any] = {
        "name": name,
        "namespace": namespace,
        "labels": {SCOPE_LABEL: scope},
    }
    if lease is not None:
        metadata["resourceVersion"] = lease["metadata"]["resourceVersion"]
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": metadata,
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": LEASE_S,
            "acquireTime": took,
            "renewTime": now,
            "leaseTransitions": spec.get("leaseTransitions", 0) + (before != holder),
        },
    }


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Other operators, as one for all namespaces sees them."""

    own: frozenset[str] = frozenset()  # namespaces with an operator of their own
    older: str = ""  # the namespace of an older operator for all of them


def neighbours(leases: Iterable[Mapping[str, Any]], *, namespace: str, now_s: float) -> Neighbours:
    """Who else looks after what; `leases` are all of our name, that of `namespace` is one's own."""
    live = {
        each["metadata"]["namespace"]: each
        for each in leases
        if each.get("spec", {}).get("holderIdentity") and now_s < _ends_s(each["spec"])
    }
    wide = [
        (each["spec"].get("acquireTime", ""), where)
        for where, each in live.items()
        if where == namespace or _scope(each) == "cluster"
    ]
    _, oldest = min(wide, default=("", namespace))
    return Neighbours(
        own=frozenset(
            where
            for where, each in live.items()
            if where != namespace and _scope(each) != "cluster"
        ),
        older="" if oldest == namespace else oldest,
    )


def _scope(lease: Mapping[str, Any]) -> str:
    return str(lease["metadata"].get("labels", {}).get(SCOPE_LABEL, ""))


def released_lease(lease: Mapping[str, Any] | None, *, holder: str) -> dict[str, Any] | None:
    """The Lease to write so that anyone may take it at once; None if `holder` does not hold it."""
    if lease is None or lease.get("spec", {}).get("holderIdentity") != holder:
        return None
    return {**lease, "spec": {**lease["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}}


def _ends_s(spec: Mapping[str, Any]) -> float:
    renewed = spec.get("renewTime")
    if renewed is None:
        return 0.0
    return datetime.fromisoformat(renewed).timestamp() + float(spec.get("leaseDurationSeconds", 0))
