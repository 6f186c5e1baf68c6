"""A real browser: Debian's Chromium, driven by Playwright; whatever it asks the network for is refused and told."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import NoReturn

import pytest
from playwright.sync_api import Browser, sync_playwright

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# As root in a container there is no sandbox, and its own services would ask the network.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def lacks(what: str) -> NoReturn:
    """Skips, or fails where a skipped tier must not pass for a tested one."""
    if os.environ.get("EXEGPT_BROWSER_REQUIRED"):
        pytest.fail(f"a browser is required here, and {what}", pytrace=False)
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = next((found for name in PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        lacks(f"none of {', '.join(PROGRAMS)} is installed")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield launched
        launched.close()
