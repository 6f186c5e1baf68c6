"""What happens where this machine lacks what a test of the cluster tier needs."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def lacks(what: str) -> NoReturn:
    """Skips, or fails where a skipped tier must not pass for a tested one."""
    if os.environ.get("EXEGPT_CLUSTER_REQUIRED"):
        pytest.fail(f"the cluster tier is required here, and {what}", pytrace=False)
    pytest.skip(what)
