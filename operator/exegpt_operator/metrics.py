"""What the operator measures of itself and of what it looks after (docs/operator.md)."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from exegpt_operator.seen import Seen

CALL_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 20.0)  # a call ends after 20 s
LOOK_S = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
PLANNING_S = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
PREFIX = "exegpt_operator_"
Deployment = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A deployment at its latest look; None: not known."""

    reason: str  # of Ready
    drift: float | None
    predicted_s: float | None
    bound_s: float | None


class OperatorMetrics:
    """All metrics of one operator."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self._readings: dict[Deployment, Reading] = {}
        registry.register(_Deployments(self._readings))

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(PREFIX + name, text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(PREFIX + name, text, registry=registry)

        def times(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(
                f"{PREFIX}{name}_seconds", text, labels, registry=registry, buckets=buckets
            )

        self._decisions = counter("decisions", "Decisions taken", "namespace", "name")
        self._actions = counter("actions", "Actions carried out", "kind")
        self._failures = counter("look_failures", "Looks that ended in an error", "kind")
        self._plans = counter("plans", "Searches that ended", "outcome")
        self._calls = counter("api_calls", "Calls to the API server", "verb", "kind", "code")
        self._call_s = times("api_call", "Until the API server has answered", CALL_S, "verb")
        self._looks = times("look", "Looks, with what they had done", LOOK_S, "kind")
        self._plannings = times("planning", "Searches", PLANNING_S)
        self._steers = times("steer", "Plans that gateways took in place", LOOK_S)
        self.is_active = gauge("active", "1 while this operator holds the Lease")
        self.keys = gauge("keys", "Deployments and profiles looked after")
        self.queue_depth = gauge("queue_depth", "Keys that wait for a look or are in one")
        self.queue_age = gauge("queue_age_seconds", "The longest that one of them has")
        self.watch_age = gauge("watch_age_seconds", "Since a watch last told of the Lease")

    def looked(self, seen: Seen, reason: str) -> None:
        """A deployment was looked at and decided on; `reason` is Ready's."""
        plan, most = (
            seen.plan,
            max(seen.serving.values(), key=lambda s: s.num_queries, default=None),
        )
        self._decisions.labels(seen.namespace, seen.name).inc()
        self._readings[seen.namespace, seen.name] = Reading(
            reason=reason,
            drift=None if most is None else most.drift,
            predicted_s=None if plan is None else plan.plan.prediction.promised_s,
            bound_s=None if seen.deployment is None else seen.deployment.spec.latency_bound.seconds,
        )

    def forget(self, namespace: str, name: str) -> None:
        """A deployment is gone, and its series with it."""
        if self._readings.pop((namespace, name), None) is not None:
            self._decisions.remove(namespace, name)

    def forget_all(self) -> None:
        """Another operator looks after them now."""
        for namespace, name in list(self._readings):
            self.forget(namespace, name)

    def acted(self, kind: str) -> None:
        """An action was carried out."""
        self._actions.labels(kind).inc()

    def called(self, verb: str, kind: str, code: str, seconds: float) -> None:
        """The API server has answered, or has not in time."""
        self._calls.labels(verb, kind, code).inc()
        self._call_s.labels(verb).observe(seconds)

    def look_ended(self, kind: str, seconds: float) -> None:
        """A look has ended, in whatever way."""
        self._looks.labels(kind).observe(seconds)

    def look_failed(self, kind: str) -> None:
        """A look has ended in an error."""
        self._failures.labels(kind).inc()

    def planned(self, outcome: str, seconds: float) -> None:
        """A search has ended; `outcome` is Planned or the refusal's reason."""
        self._plans.labels(outcome).inc()
        self._plannings.observe(seconds)

    def steered(self, seconds: float) -> None:
        """A gateway has taken a plan in place."""
        self._steers.observe(seconds)


class _Deployments(Collector):
    """Series of the deployments that there are, made as they are asked for."""

    def __init__(self, readings: Mapping[Deployment, Reading]) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        readings = list(self._readings.items())  # the loop goes on meanwhile
        by_reason = GaugeMetricFamily(
            f"{PREFIX}deployments", "Deployments, by the reason of Ready", labels=["reason"]
        )
        for reason, count in Tally(each.reason for _, each in readings).items():
            by_reason.add_metric([reason], count)
        yield by_reason
        for name, text, values in (
            ("drift", "Observed lengths off the planned ones, a share of the mean",
             [(of, each.drift) for of, each in readings]),
            ("predicted_seconds", "What the plan in force promises",
             [(of, each.predicted_s) for of, each in readings]),
            ("bound_seconds", "spec.latencyBound.seconds",
             [(of, each.bound_s) for of, each in readings]),
        ):  # fmt: skip
            family = GaugeMetricFamily(PREFIX + name, text, labels=["namespace", "name"])
            for of, value in values:
                if value is not None:
                    family.add_metric(of, value)
            yield family
