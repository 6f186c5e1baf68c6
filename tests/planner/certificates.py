"""Certificates of small plans, and forgeries of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from exegpt_planner.bound import Bound
from exegpt_planner.builtin_models import builtin_model
from exegpt_planner.certificate_check import check
from exegpt_planner.certificate_file import CertificateFile, Checked, Laws, Memory
from exegpt_planner.hardware.analytic import analytic_table
from exegpt_planner.hardware.calibrations import calibration
from exegpt_planner.hardware.clusters import cluster_of
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.plan import make_plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.tasks import paper_task
from exegpt_planner.workload import Workload
from planner.builders import (
    MODEL,
    bell,
    independent,
    line,
    rough_parallel,
    rough_table,
    summarization_like,
    table,
)

Json = dict[str, Any]

ALL = ("RRA", "WAA", "CRA")
KV_BYTES = MODEL.kv_bytes_per_token("float32")


def certified(
    *,
    table: ProfileTable,
    model: ModelSpec,
    workload: Workload,
    bound: Bound,
    memory: MemoryBudget,
    strategies: tuple[str, ...],
    devices: int,
) -> CertificateFile:
    """The best plan's certificate."""
    plan = make_plan(
        table=table,
        model=model,
        workload=workload,
        bound=bound,
        memory=memory,
        strategies=strategies,
        workers=devices,
        with_sensitivity=False,
    )
    return CertificateFile(
        table=table,
        model=model,
        workload=Laws.of(workload),
        bound=bound,
        memory=Memory(
            device_bytes=memory.device_bytes,
            reserve_bytes=memory.reserve_bytes,
            holds_activations=memory.holds_activations,
        ),
        devices=devices,
        strategies=strategies,
        length_tokens=plan.length_tokens,
        schedule=plan.schedule,
        prediction=plan.prediction,
        certificate=plan.certificate,
    )


def checked(file: CertificateFile) -> Checked:
    return check(file, lambda done, total: None)


def forged(file: CertificateFile, change: Callable[[Json], None]) -> CertificateFile:
    """The file with its content changed, and the hash with it."""
    content: Json = json.loads(file.model_dump_json())
    change(content)
    return CertificateFile.model_validate(content)


@cache
def small(
    strategies: tuple[str, ...] = ("RRA",), seconds: float = 0.1, devices: int = 1
) -> CertificateFile:
    """On devices that hold the whole of a small model."""
    return certified(
        table=table(queries=line(0.0, 1.5e-5, 60)),
        model=MODEL,
        workload=summarization_like(),
        bound=Bound(seconds=seconds),
        memory=MemoryBudget(device_bytes=MODEL.weight_bytes("float32") + 3000 * KV_BYTES),
        strategies=strategies,
        devices=devices,
    )


@cache
def analytic(
    name: str,
    gpus: int,
    task: str,
    bound: Bound,
    strategies: tuple[str, ...] = ALL,
) -> CertificateFile:
    """Of a model known by name on A40s."""
    model, cluster = builtin_model(name), cluster_of("a40", gpus)
    return certified(
        table=analytic_table(
            model, cluster, "float16", efficiencies=calibration("a40", "datasheet")
        ),
        model=model,
        workload=paper_task(task),
        bound=bound,
        memory=MemoryBudget(
            device_bytes=cluster.device.memory_bytes,
            reserve_bytes=2 << 30,
            holds_activations=False,
        ),
        strategies=strategies,
        devices=gpus,
    )


@cache
def piped(seconds: float) -> CertificateFile:
    """On two rough devices that share a model."""
    return certified(
        table=rough_parallel(rough_table(np.random.default_rng(3)), np.random.default_rng(4)),
        model=MODEL,
        workload=independent(bell(20, 9, 40), bell(7, 3, 14)),
        bound=Bound(seconds=seconds),
        memory=MemoryBudget(device_bytes=2 * MODEL.weight_bytes("float32") + 3000 * KV_BYTES),
        strategies=("RRA",),
        devices=2,
    )
