"""The paper's scenarios: models on their clusters, tasks, and bounds taken from FasterTransformer's latencies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from exegpt_cli.imagined import RESERVE_BYTES
from exegpt_planner.bound import Bound
from exegpt_planner.builtin_models import builtin_model
from exegpt_planner.completion import law_on
from exegpt_planner.hardware.analytic import analytic_table
from exegpt_planner.hardware.calibrations import calibration
from exegpt_planner.hardware.clusters import cluster_of
from exegpt_planner.layout import Typical, layouts
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.plan import KNOWN, Plan, make_plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.shapes import Shape, room_of
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.simulator.rra import RraModel
from exegpt_planner.simulator.static import StaticModel
from exegpt_planner.tasks import paper_task
from exegpt_planner.workload import Workload

DTYPE = "float16"
PARTS = (0.1, 0.3, 0.7)  # of FasterTransformer's latencies, from the shortest
STEP = 4  # of its batches

# (model, device, devices, tasks): Table 2 and Figures 6 and 8
CLUSTERS = (
    ("t5-11b", "a40", 8, ("S", "T", "C1")),
    ("opt-13b", "a40", 4, ("S", "T", "C1")),
    ("gpt3-39b", "a40", 16, ("S", "T", "C1")),
    ("gpt3-101b", "a100-80", 16, ("S", "T", "C1", "G", "C2")),
    ("gpt3-175b", "a100-80", 16, ("G", "C1", "C2")),
    ("gpt3-175b", "a40", 32, ("G", "C1", "C2")),
    ("gpt3-341b", "a40", 48, ("G", "C1", "C2")),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scenario:
    """A model on its cluster with one task."""

    name: str
    table: ProfileTable
    model: ModelSpec
    workload: Workload
    memory: MemoryBudget
    devices: int
    batches: Static  # FasterTransformer's

    def plan(self, bound_s: float, strategies: Sequence[str] = KNOWN) -> Plan:
        """The plan in the paper's own terms: a bound on the mean latency."""
        return make_plan(
            table=self.table,
            model=self.model,
            workload=self.workload,
            bound=Bound(seconds=bound_s, mode="mean"),
            memory=self.memory,
            strategies=strategies,
            workers=self.devices,
            with_sensitivity=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Static:
    """FasterTransformer on its fixed shape: as much tensor parallelism as a node holds."""

    plain: StaticModel
    early: StaticModel
    kv_tokens: int
    length: int  # of the bound, tokens
    most: int

    def best(self, bound_s: float, *, early: bool) -> float:
        """The most queries/s of any batch within the bound; 0 if none keeps it."""
        model = self.early if early else self.plain
        batches = [b for b in range(1, self.most) if model.kv_need(b) <= self.kv_tokens]
        kept = [b for b in batches if model.latency_s(b, self.length) <= bound_s]
        return max((model.throughput(b) for b in kept), default=0.0)

    def bounds_s(self) -> list[float]:
        """The paper's: parts of its latencies over batches of 4, 8, ..., and none."""
        batches = range(STEP, self.most, STEP)
        latencies = sorted(
            self.plain.latency_s(batch, self.length)
            for batch in batches
            if self.plain.kv_need(batch) <= self.kv_tokens
        )
        return [latencies[int(part * (len(latencies) - 1))] for part in PARTS] + [math.inf]


def scenarios(calibrated: str = "datasheet") -> Iterator[Scenario]:
    """Those of the paper."""
    for name, device, devices, tasks in CLUSTERS:
        model = builtin_model(name)
        cluster = cluster_of(device, devices)
        efficiencies = calibration(device, calibrated if device == "a40" else "datasheet")
        table = analytic_table(model, cluster, DTYPE, efficiencies=efficiencies)
        memory = MemoryBudget(
            device_bytes=cluster.device.memory_bytes,
            reserve_bytes=RESERVE_BYTES,
            holds_activations=False,
        )
        for task in tasks:
            workload = paper_task(task)
            yield Scenario(
                name=f"{name} {devices}x{device} {task}",
                table=table,
                model=model,
                workload=workload,
                memory=memory,
                devices=devices,
                batches=_static(table, model, workload, memory, devices),
            )


def _static(
    table: ProfileTable, model: ModelSpec, workload: Workload, memory: MemoryBudget, devices: int
) -> Static:
    law, prompts = law_on(table, workload), prompt_moments(workload)
    degree = min(8, devices)
    layout = next(
        each
        for each in layouts(table, Typical.of(law, table), devices)
        if all(stage.degree == degree for stage in each.stages)
    )
    room = room_of(layout, model, DTYPE, memory)
    assert room is not None, "the paper served it so"
    shape = Shape(units=1, layout=layout, micro_batches=len(layout.stages), room=room)
    most = room.kv_tokens // int(workload.input.mean) + 2
    unit = RraModel(Pipeline.of(shape, table), law, prompts, most)
    longest = workload.input.max + workload.output.max
    return Static(
        plain=StaticModel(unit, early_termination=False),
        early=StaticModel(unit, early_termination=True),
        kv_tokens=room.kv_tokens,
        length=law.workload.output.quantile(0.99),
        most=min(most, max(2 * STEP + 1, 2 * room.kv_tokens // longest)),
    )
