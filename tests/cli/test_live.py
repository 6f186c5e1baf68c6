from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from exegpt_cli.bench.own import cycle_between
from exegpt_gateway.metrics import Metrics


def test_the_cycle_is_the_mean_between_two_states_of_the_metrics() -> None:
    metrics = Metrics(CollectorRegistry())
    metrics.cycle_s.observe(9.0)  # before the window
    before = generate_latest(metrics.registry).decode()
    for seconds in (0.2, 0.4):
        metrics.cycle_s.observe(seconds)
    after = generate_latest(metrics.registry).decode()
    cycle_s = cycle_between(before, after)
    assert cycle_s is not None
    assert abs(cycle_s - 0.3) < 1e-9
    assert cycle_between(after, after) is None
    assert cycle_between(None, after) is None
