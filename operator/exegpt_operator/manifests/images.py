"""The images that pods run; values of the operator's own installation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Which images, and how they are pulled."""

    runner: str
    gateway: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    extra_claim: str = (
        ""  # mounted read-only at EXTRA_PATH of every container, for images without torch
    )
    extra_python: str = ""  # the interpreter in it, instead of `python`


EXTRA_PATH = "/opt/exegpt"
