"""The paper's scenarios: models on their clusters, tasks, and bounds taken from FasterTransformer's latencies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from exegpt_cli.imagined import RESERVE_BYTES
from exegpt_planner.bound import Bound
from exegpt_planner.builtin_models import builtin_model
from exegpt_planner.completion import CompletionLaw, law_on
from exegpt_planner.hardware.analytic import analytic_table
from exegpt_planner.hardware.calibrations import calibration
from exegpt_planner.hardware.clusters import cluster_of
from exegpt_planner.layout import Typical, layouts
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.plan import KNOWN, Plan, make_plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.shapes import Shape, room_of, shapes
from exegpt_planner.tasks import paper_task
from exegpt_planner.workload import Workload
from paper_static import Static

DTYPE = "float16"
NODE = 8  # devices; FasterTransformer's tensor parallelism spans as much of a node as there is

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


@dataclass(frozen=True, kw_only=True, eq=False)  # no slots: what is cached needs a dict
class Scenario:
    """A model on its cluster with one workload."""

    model_name: str
    device: str
    devices: int
    task: str
    table: ProfileTable
    model: ModelSpec
    workload: Workload
    memory: MemoryBudget
    is_padded: bool = False  # FasterTransformer's inputs, to the longest there is

    @property
    def name(self) -> str:
        """In a table."""
        return f"{self.cluster} {self.task}"

    @property
    def cluster(self) -> str:
        """The model and where it runs."""
        return f"{self.model_name} {self.devices}x{self.device}"

    @cached_property
    def law(self) -> CompletionLaw:
        """The laws of its workload on its model."""
        return law_on(self.table, self.workload)

    @cached_property
    def shapes(self) -> list[Shape]:
        """All there are."""
        typical = Typical.of(self.law, self.table)
        return list(shapes(self.table, self.model, self.memory, typical, self.devices))

    @cached_property
    def fixed(self) -> Shape:
        """FasterTransformer's, and ORCA's: one unit, tensor parallelism over a node, a micro-batch a stage."""
        typical = Typical.of(self.law, self.table)
        layout = next(
            each
            for each in layouts(self.table, typical, self.devices)
            if all(stage.degree == min(NODE, self.devices) for stage in each.stages)
        )
        room = room_of(layout, self.model, DTYPE, self.memory)
        assert room is not None, "the paper served it so"
        return Shape(units=1, layout=layout, micro_batches=len(layout.stages), room=room)

    @cached_property
    def batches(self) -> Static:
        """FasterTransformer's."""
        return Static.on(self.fixed, self.law, self.table, is_padded=self.is_padded)

    def plan(
        self, bound_s: float, strategies: Sequence[str] = KNOWN, *, mode: str = "mean"
    ) -> Plan:
        """The plan; by default in the paper's own terms, a bound on the mean latency."""
        return make_plan(
            table=self.table,
            model=self.model,
            workload=self.workload,
            bound=Bound(seconds=bound_s, mode="mean" if mode == "mean" else "p99"),
            memory=self.memory,
            strategies=strategies,
            workers=self.devices,
            with_sensitivity=False,
        )


def scenario(  # noqa: PLR0913 - the whole question
    name: str,
    device: str,
    devices: int,
    workload: Workload,
    *,
    task: str = "",
    calibrated: str = "datasheet",
    is_padded: bool = False,
) -> Scenario:
    """A built-in model on devices of one kind, their step times from published figures."""
    model, cluster = builtin_model(name), cluster_of(device, devices)
    efficiencies = calibration(device, calibrated if device == "a40" else "datasheet")
    return Scenario(
        model_name=name,
        device=device,
        devices=devices,
        task=task,
        table=analytic_table(model, cluster, DTYPE, efficiencies=efficiencies),
        model=model,
        workload=workload,
        memory=MemoryBudget(
            device_bytes=cluster.device.memory_bytes,
            reserve_bytes=RESERVE_BYTES,
            holds_activations=False,
        ),
        is_padded=is_padded,
    )


def scenarios(calibrated: str = "datasheet", *, is_padded: bool = False) -> Iterator[Scenario]:
    """Those of the paper."""
    for name, device, devices, tasks in CLUSTERS:
        for task in tasks:
            yield scenario(
                name,
                device,
                devices,
                paper_task(task),
                task=task,
                calibrated=calibrated,
                is_padded=is_padded,
            )


def quick(some: Iterator[Scenario]) -> Iterator[Scenario]:
    """The first task of each model, on the first of its clusters."""
    seen: set[str] = set()
    for each in some:
        if each.model_name not in seen:
            seen.add(each.model_name)
            yield each
