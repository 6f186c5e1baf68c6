"""`exegpt plan` and `profile`: the schedule, its proof, and the step times it rests on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from exegpt_cli.cache import Cache
from exegpt_cli.imagined import imagine
from exegpt_cli.lifetime import ending_cleanly
from exegpt_cli.local import memory_budget, plan_on_profile, planning
from exegpt_cli.output import Format, answer, check_writable, progress, say
from exegpt_cli.plan_options import PlanOptions
from exegpt_cli.summary import plan_text, profile_text
from exegpt_cli.wanted import read_wanted
from exegpt_planner.certificate_file import CertificateFile, Laws, Memory
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.plan import Plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.workload import Workload


class Asked(NamedTuple):
    """A plan and what it rests on."""

    workload: Workload
    table: ProfileTable
    plan: Plan
    model: ModelSpec
    memory: MemoryBudget
    strategies: tuple[str, ...]
    devices: int


def show_plan(options: PlanOptions, *, certificate: Path | None, output: Format) -> None:
    """Print the plan that the options ask for; write its proof where `certificate` says."""
    if certificate is not None:
        check_writable(certificate, "--certificate")
    found = asked(options)
    plan = found.plan
    if certificate is not None:
        _with_proof(found).write(certificate)
        say(f"The certificate is in {certificate}: exegpt check-certificate {certificate}")
    answer(plan.model_dump_json(indent=2) if output is Format.JSON else plan_text(plan))


def asked(options: PlanOptions) -> Asked:
    """What the options ask for, planned."""
    if options.imagined:
        with progress("Planning"):
            imagined = imagine(options)
            return Asked(
                workload=imagined.workload,
                table=imagined.table,
                plan=imagined.plan(),
                model=imagined.model,
                memory=imagined.memory,
                strategies=imagined.strategies,
                devices=imagined.devices,
            )
    return planned(file_of(options), options.strategy)


def file_of(options: PlanOptions) -> Path:
    """The manifest; raises `InvalidSpec` where neither it nor anything in its place is given."""
    if options.file is None:
        raise InvalidSpec(
            "the command line",
            ["-f FILE is missing; or --model, --device, --gpus, --task and --bound in its place"],
        )
    return options.file


def _with_proof(found: Asked) -> CertificateFile:
    plan, memory = found.plan, found.memory
    return CertificateFile(
        table=found.table,
        model=found.model,
        workload=Laws.of(found.workload),
        bound=plan.bound,
        memory=Memory(
            device_bytes=memory.device_bytes,
            reserve_bytes=memory.reserve_bytes,
            holds_activations=memory.holds_activations,
        ),
        devices=found.devices,
        strategies=found.strategies,
        length_tokens=plan.length_tokens,
        schedule=plan.schedule,
        prediction=plan.prediction,
        certificate=plan.certificate,
    )


def show_profile(file: Path, *, again: bool, output: Format) -> None:
    """Print the profile that planning `file` rests on; measures what is not cached, or all of it `again`."""
    table = planned(file, None, again=again).table
    answer(table.model_dump_json(indent=2) if output is Format.JSON else profile_text(table))


def planned(file: Path, strategy: str | None, *, again: bool = False) -> Asked:
    """The plan of what `file` asks for, on its profile, measured if it is not cached."""
    with ending_cleanly():
        cache = Cache.of_user()
        wanted = read_wanted(file, cache, strategy=strategy)
        memory = memory_budget(wanted.num_workers)
        with planning(wanted, cache) as profiler:
            if again:
                profiler.forget()
            table, plan = plan_on_profile(wanted, profiler.table, memory)
    return Asked(
        workload=wanted.workload,
        table=table,
        plan=plan,
        model=wanted.model,
        memory=memory,
        strategies=wanted.strategies,
        devices=wanted.num_workers,
    )
