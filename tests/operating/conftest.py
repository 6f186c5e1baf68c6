"""What tests of the operator share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from exegpt_operator import names
from operator_bench import Bench, benched


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A loop on an API server of this process, and a gateway that pods of it stand for."""
    with benched() as found:
        monkeypatch.setattr(names, "CONTROL_PORT", found.gateway.port)
        yield found
