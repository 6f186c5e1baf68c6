"""What our own server's /metrics say of a load: the totals at its end less those at its beginning."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from exegpt_cli.bench.report import Speed

CYCLE = "exegpt_cycle_seconds"
ITERATION = "exegpt_iteration_seconds"
UNSLOWED = "exegpt_unslowed_iteration_seconds_total"
PREDICTED = "exegpt_predicted_iteration_seconds_total"


class Scraped:
    """The difference between two scrapes; nothing is known when one of them is missing."""

    def __init__(self, before: str | None, after: str | None) -> None:
        self._passed: dict[str, float] = {}
        if before is not None and after is not None:
            first, last = _totals(before), _totals(after)
            self._passed = {name: total - first.get(name, 0.0) for name, total in last.items()}

    @property
    def cycle_s(self) -> float | None:
        """The mean cycle."""
        return self._ratio(f"{CYCLE}_sum", f"{CYCLE}_count")

    @property
    def speed(self) -> Speed | None:
        """The worker's iterations beside the profile."""
        slowdown = self._ratio(f"{ITERATION}_sum", UNSLOWED)
        beside_profile = self._ratio(UNSLOWED, PREDICTED)
        if slowdown is None or beside_profile is None:
            return None
        return Speed(slowdown=slowdown, beside_profile=beside_profile)

    def _ratio(self, name: str, per: str) -> float | None:
        count = self._passed.get(per, 0.0)
        return self._passed.get(name, 0.0) / count if count > 0 else None


def _totals(metrics: str) -> dict[str, float]:
    """Each series' total over its labels."""
    totals: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            totals[sample.name] += sample.value
    return totals
