"""Certificates of small plans, and forgeries of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from exegpt_planner.bound import Bound
from exegpt_planner.certificate_check import check
from exegpt_planner.certificate_file import CertificateFile, Checked, Laws, Memory
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.plan import make_plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.workload import Workload

Json = dict[str, Any]


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
