"""Times as Kubernetes writes them: RFC 3339, whole seconds, UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(seconds: float) -> str:
    """A time, seconds since 1970, as text."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """A text's time, seconds since 1970; 0 for none."""
    return datetime.fromisoformat(text).timestamp() if text else 0.0
