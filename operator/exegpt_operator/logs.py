"""Every line on stdout is one JSON object: ours, kopf's, and errors that nobody caught (docs/operator.md).

Lines name what they are about by `extra={"about": …}`, as `name` itself is the logger's in Python's records. No line
holds what a Secret, a token, a pod's environment or a prompt says.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

from exegpt_operator.seen import Seen

log = logging.getLogger(__name__)

KOPF = ("k8s_ref", "k8s_skip", "settings")  # what kopf puts into its records
_UNCAUGHT = "ended by an error that nobody caught"


def configure(stream: TextIO | None = None) -> None:
    """From here on whatever is logged, warned of or not caught is a JSON line on `stream`, else on stdout."""
    handler = logging.StreamHandler(stream or sys.stdout)
    handler.setFormatter(Formatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # a line an event says nothing
    logging.captureWarnings(True)
    sys.excepthook = _uncaught
    threading.excepthook = lambda found: log.critical(_UNCAUGHT, exc_info=found.exc_value)


def about(seen: Seen) -> dict[str, Any]:
    """What a line on a deployment says it is about."""
    found: dict[str, Any] = {
        "namespace": seen.namespace,
        "name": seen.name,
        "uid": seen.uid,
        "generation": seen.generation,
    }
    return found if seen.plan is None else found | {"planId": seen.plan.id}


class Formatter(JsonFormatter):
    """A record as an object with `ts`, `level`, `logger`, `msg`, what it is about, and its extras."""

    def __init__(self) -> None:
        super().__init__(
            (),  # fields of records; those of ours are added below
            reserved_attrs=[*RESERVED_ATTRS, *KOPF, "about", "message"],
            rename_fields={"exc_info": "exception", "stack_info": "stack"},
        )

    def add_fields(
        self,
        log_data: dict[str, Any],
        record: logging.LogRecord,
        message_dict: dict[str, Any],
    ) -> None:
        log_data |= {
            "ts": _milliseconds(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "msg": record.getMessage(),
        }
        log_data.update(_objects(record))
        super().add_fields(log_data, record, message_dict)


def _objects(record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    """What it is about, in our words and kopf's."""
    reference: Mapping[str, Any] = getattr(record, "k8s_ref", None) or {}
    for key in ("kind", "namespace", "name", "uid"):
        if reference.get(key):
            yield key, reference[key]
    yield from getattr(record, "about", {}).items()


def _milliseconds(seconds: float) -> str:
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")


def _uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    if issubclass(kind, KeyboardInterrupt):
        return
    log.critical(_UNCAUGHT, exc_info=(kind, error, traceback))
