"""What a running server says: where it is, and now and then what it measures beside what was predicted.

Throughput was predicted under a saturated backlog; with less work than that, less is measured. Latencies compare at any
load, being normalised to an answer of length s99.
"""

from __future__ import annotations

import json

from prometheus_client import CollectorRegistry

from exegpt_planner.plan import Plan

COUNTERS = (
    "exegpt_output_tokens_sum",
    "exegpt_output_tokens_count",
    "exegpt_cycle_seconds_sum",
    "exegpt_cycle_seconds_count",
    "exegpt_normalised_latency_seconds_sum",
    "exegpt_normalised_latency_seconds_count",
)
STAGES = ("encode", "decode", "mixed")
VARIATION = "exegpt_stage_time_variation_ratio"
SLOWDOWN = "exegpt_machine_slowdown_ratio"


def invitation(host: str, port: int, model: str) -> str:
    """The address, and a request to try it with."""
    body = {"model": model, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    return (
        f"\nServing {model} at http://{host}:{port}/v1 (Ctrl-C drains and ends). Try it:\n\n"
        f"  curl -N http://{host}:{port}/v1/chat/completions -H 'Content-Type: application/json' \\\n"
        f"    -d '{json.dumps(body | {'stream': True})}'\n"
    )


class Window:
    """The counters of a server since the last look; at first since its start."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._last = dict.fromkeys(COUNTERS, 0.0)

    def _totals(self) -> dict[str, float]:
        return {name: self._registry.get_sample_value(name) or 0.0 for name in COUNTERS}

    def line(self, seconds: float, plan: Plan) -> str | None:
        """Measured beside what `plan` predicts, over the `seconds` since the last look; None when nothing ended."""
        last, self._last = self._last, self._totals()
        passed = {name: value - last[name] for name, value in self._last.items()}
        answers = passed["exegpt_output_tokens_count"]
        if not answers:
            return None
        expected = plan.prediction
        parts = [
            f"{answers / seconds:.2f} queries/s (predicted {expected.queries_per_s:.2f} under a backlog)",
            f"{passed['exegpt_output_tokens_sum'] / seconds:.0f} tokens/s ({expected.tokens_per_s:.0f})",
        ]
        cycles = passed["exegpt_cycle_seconds_count"]
        if cycles:
            cycle_s = passed["exegpt_cycle_seconds_sum"] / cycles
            parts.append(f"cycle {cycle_s * 1e3:.1f} ms ({expected.cycle_s * 1e3:.1f})")
        normalised = passed["exegpt_normalised_latency_seconds_count"]
        if normalised:
            latency_s = passed["exegpt_normalised_latency_seconds_sum"] / normalised
            parts.append(f"s99 answer {latency_s:.2f} s ({expected.latency_mean_s:.2f})")
        share = self._registry.get_sample_value("exegpt_within_bound_ratio")
        if share is not None and normalised:
            parts.append(f"{share:.1%} within {plan.bound.seconds:g} s")
        strays = [(kind, self._strays(kind)) for kind in STAGES]
        if known := [f"{kind} ± {value:.1%}" for kind, value in strays if value is not None]:
            parts.append(f"stage times {', '.join(known)}")
        slowdown = self._registry.get_sample_value(SLOWDOWN)
        if slowdown:
            parts.append(f"machine at {1 / slowdown:.2f} of its speed while profiling")
        return f"last {seconds:.0f} s: " + ", ".join(parts)

    def _strays(self, kind: str) -> float | None:
        return self._registry.get_sample_value(VARIATION, {"kind": kind})
