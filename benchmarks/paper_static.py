"""Static batches as the paper's baseline, FasterTransformer, serves them, every batch tried; the bounds they give."""

from __future__ import annotations

import math
from dataclasses import dataclass

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.lengths import point
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.shapes import Shape
from exegpt_planner.simulator.encodes import EncodeTimes
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.static import StaticModel
from exegpt_planner.workload import Workload

PARTS = (0.1, 0.3, 0.7)  # of FasterTransformer's latencies, from the shortest
STEP = 4  # of its batches


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Static:
    """Static batches on one shape, every unit alike."""

    plain: StaticModel
    early: StaticModel
    units: int
    kv_tokens: int
    length: int  # of the bound, tokens
    least: int  # a query a micro-batch
    most: int  # batches are smaller: more prompts than fit

    @classmethod
    def on(
        cls, shape: Shape, law: CompletionLaw, table: ProfileTable, *, is_padded: bool = False
    ) -> Static:
        """On a shape. Padded: every prompt is encoded as if it were as long as the longest there is."""
        workload = law.workload
        most = shape.room.kv_tokens // int(workload.input.mean) + 2
        pipeline = Pipeline.of(shape, table)
        unit = RraModel(pipeline, law, prompt_moments(workload), most)
        if is_padded:
            unit.encodes = padded_encodes(pipeline, workload, most)
        return cls(
            plain=StaticModel(unit, early_termination=False),
            early=StaticModel(unit, early_termination=True),
            units=shape.units,
            kv_tokens=shape.room.kv_tokens,
            length=workload.output.quantile(0.99),
            least=shape.micro_batches,
            most=min(unit.max_batch + 1, most),
        )

    def best(self, bound_s: float, *, early: bool) -> float:
        """The most queries/s of any batch within the bound; 0 if none keeps it."""
        model, best = (self.early if early else self.plain), 0.0
        for batch in range(self.least, self.most):
            if model.kv_need(batch) > self.kv_tokens:
                break
            if model.latency_s(batch, self.length) <= bound_s:
                best = max(best, model.throughput(batch))
        return self.units * best

    def bounds_s(self) -> list[float]:
        """The paper's: parts of its latencies over batches of 4, 8, ..., and none."""
        first = STEP * math.ceil(self.least / STEP)
        latencies = sorted(
            self.plain.latency_s(batch, self.length)
            for batch in range(first, self.most, STEP)
            if self.plain.kv_need(batch) <= self.kv_tokens
        )
        return [latencies[int(part * (len(latencies) - 1))] for part in PARTS] + [math.inf]


def padded_encodes(pipeline: Pipeline, workload: Workload, most: int) -> EncodeTimes:
    """Encodes of prompts that are all as long as the longest."""
    longest = Workload.independent(point(workload.input.max), workload.output, source="padded")
    return EncodeTimes(pipeline, longest, prompt_moments(longest), most)
