"""What our own server's /metrics say of a load: the totals at its end less those at its beginning."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from exegpt_cli.bench.report import Speed, StageVariation

CYCLE = "exegpt_cycle_seconds"
ITERATION = "exegpt_iteration_seconds"
UNSLOWED = "exegpt_unslowed_iteration_seconds_total"
PREDICTED = "exegpt_predicted_iteration_seconds_total"
VARIATION = "exegpt_stage_time_variation_ratio"


class Scraped:
    """The difference between two scrapes; nothing is known when one of them is missing."""

    def __init__(self, before: str | None, after: str | None) -> None:
        self._passed: dict[str, float] = {}
        self._after = after
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

    @property
    def stage_variation(self) -> StageVariation | None:
        """How much the latest stages' times strayed, at the end."""
        if self._after is None:
            return None
        by_kind = {
            sample.labels["kind"]: sample.value
            for family in text_string_to_metric_families(self._after)
            for sample in family.samples
            if sample.name == VARIATION
        }
        if not by_kind:
            return None
        return StageVariation(
            encode=by_kind.get("encode"), decode=by_kind.get("decode"), mixed=by_kind.get("mixed")
        )

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
