"""One active operator: who holds the Lease acts, the others wait until it ends.

Pure in `next_lease`; the loop reads, asks and replaces, and the API server's resource version decides between two.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

LEASE_S = 15
RENEW_S = 5.0


def next_lease(
    lease: Mapping[str, Any] | None, *, name: str, namespace: str, holder: str, now_s: float
) -> dict[str, Any] | None:
    """The Lease to write so that `holder` holds it; None while another one does."""
    spec = {} if lease is None else lease.get("spec", {})
    before = spec.get("holderIdentity")
    if before not in (None, "", holder) and now_s < _ends_s(spec):
        return None
    now = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    took = spec.get("acquireTime", now) if before == holder else now
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
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
