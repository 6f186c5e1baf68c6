"""Whether what is there is what we want: no write at rest, and manual edits are seen.

The wanted object's hash is kept in an annotation of the child, so that a field we no longer set is noticed; each field
we set is compared with what is there, quantities by value, as the API server rewrites them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from exegpt_operator.names import GROUP

APPLIED = f"{GROUP}/applied"  # on children: the hash of what we last applied
_SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


def stamped(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """`wanted` with its own hash among its annotations."""
    metadata = wanted["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED: _hash(wanted)}
    return {**wanted, "metadata": {**metadata, "annotations": annotations}}


def is_as_wanted(wanted: Mapping[str, Any], there: Mapping[str, Any] | None) -> bool:
    """Whether the child was made from `wanted` and nobody has changed a field of it since."""
    if there is None:
        return False
    applied = there.get("metadata", {}).get("annotations", {}).get(APPLIED)
    return applied == _hash(wanted) and _holds(there, wanted)


def key(kind: str, name: str) -> str:
    """What children are filed under."""
    return f"{kind}/{name}"


def key_of(wanted: Mapping[str, Any]) -> str:
    """The same, of an object."""
    return key(wanted["kind"], wanted["metadata"]["name"])


def _hash(wanted: Mapping[str, Any]) -> str:
    text = json.dumps(wanted, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _holds(there: Any, wanted: Any) -> bool:
    """Whether `there` has everything that `wanted` says; defaults beside it are fine."""
    if isinstance(wanted, Mapping):
        return isinstance(there or {}, Mapping) and all(
            _holds((there or {}).get(name), value) for name, value in wanted.items()
        )
    if not wanted:
        return not there  # empty, zero and false are left out on the wire
    if isinstance(wanted, list | tuple):
        return (
            isinstance(there, list | tuple)
            and len(there) == len(wanted)
            and all(_holds(a, b) for a, b in zip(there, wanted, strict=True))
        )
    if isinstance(wanted, str) and isinstance(there, str) and there != wanted:
        return quantity(there) is not None and quantity(there) == quantity(wanted)
    return bool(there == wanted)


def quantity(text: str) -> float | None:
    """A Kubernetes quantity's value; None for any other text."""
    digits = text.rstrip("".join({c for suffix in _SUFFIXES for c in suffix}))
    factor = _SUFFIXES.get(text[len(digits) :])
    try:
        return None if factor is None else float(digits) * factor
    except ValueError:
        return None
