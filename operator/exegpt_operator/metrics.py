"""What the operator measures of itself (docs/operator.md)."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class OperatorMetrics:
    """All metrics of one operator."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.decisions = Counter(
            "exegpt_operator_decisions",
            "Decisions, by deployment",
            ["namespace", "name"],
            registry=registry,
        )
        self.actions = Counter(
            "exegpt_operator_actions",
            "Actions decided on, by deployment",
            ["namespace", "name"],
            registry=registry,
        )
        self.is_active = Gauge(
            "exegpt_operator_active", "1 while this operator holds the Lease", registry=registry
        )
        self.keys = Gauge(
            "exegpt_operator_keys", "Deployments and profiles looked after", registry=registry
        )

    def decided(self, namespace: str, name: str, num_actions: int) -> None:
        """Notes a decision."""
        self.decisions.labels(namespace, name).inc()
        self.actions.labels(namespace, name).inc(num_actions)
