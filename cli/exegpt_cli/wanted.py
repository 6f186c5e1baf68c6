"""What a manifest asks of this machine, with its model at hand; everything that can be refused early is.

One worker process is one device, and has a core at least.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from exegpt_cli.cache import Cache
from exegpt_cli.model_source import resolve
from exegpt_cli.output import say
from exegpt_planner.bound import Bound
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.manifest import Deployment, read_manifest
from exegpt_planner.model_spec import ModelSpec, read_model_spec
from exegpt_planner.workload import Workload, read_workload

ALONE = ("RRA", "CRA")  # what one worker can run
STRATEGIES = ("RRA", "WAA", "CRA")  # what several can
DTYPES = ("bfloat16", "float32", "float64")  # what the engine computes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a manifest asks for, with its model at hand."""

    deployment: Deployment
    folder: Path
    model: ModelSpec
    workload: Workload  # probes mixed in
    bound: Bound
    strategies: tuple[str, ...]

    @property
    def num_workers(self) -> int:
        """Worker processes, one a device."""
        return self.deployment.spec.cluster.gpus

    @property
    def length(self) -> int:
        """The output length that the bound is about, tokens."""
        return self.workload.percentile_length(self.bound.percentile_length)


def read_wanted(
    file: Path, cache: Cache, *, strategy: str | None = None, probes: float = 0.0
) -> Wanted:
    """What `file` asks for; the model is fetched or converted if it is not here yet."""
    deployment = read_manifest(file)
    strategies = _strategies(deployment, strategy)
    problems = list(_problems(deployment, strategies, strategy))
    if problems:
        raise InvalidSpec(str(file), problems)
    spec = deployment.spec
    folder = resolve(spec.model.uri, spec.model.revision, cache, say=say)
    model = read_model_spec(folder)
    _check_weights(folder)
    workload = read_workload(spec.workload, model.context)
    percentile = spec.latency_bound.percentile_length
    return Wanted(
        deployment=deployment,
        folder=folder,
        model=model,
        workload=workload.with_probes(probes, percentile=percentile) if probes else workload,
        bound=Bound(seconds=spec.latency_bound.seconds, percentile_length=percentile),
        strategies=strategies,
    )


def _strategies(deployment: Deployment, forced: str | None) -> tuple[str, ...]:
    asked = deployment.spec.scheduling.strategies if forced is None else (forced.upper(),)
    return tuple(name for name in asked if name in _runnable(deployment))


def _runnable(deployment: Deployment) -> tuple[str, ...]:
    return STRATEGIES if deployment.spec.cluster.gpus > 1 else ALONE


def _problems(
    deployment: Deployment, strategies: Sequence[str], forced: str | None
) -> Iterator[str]:
    """Every reason why this machine cannot serve a valid manifest as it stands."""
    spec = deployment.spec
    cores = len(os.sched_getaffinity(0))
    if spec.cluster.gpus > cores:
        yield (
            f"spec.cluster.gpus: {spec.cluster.gpus} devices; on a CPU each is a worker with a core of its own, and "
            f"there are {cores} cores. Set it to {cores} or less"
        )
    if spec.replicas != 1:
        yield f"spec.replicas: one machine runs one replica, not {spec.replicas}. Set it to 1"
    if spec.suspend:
        yield "spec.suspend: true, so nothing is to run. Set it to false"
    if spec.model.dtype not in DTYPES:
        yield f"spec.model.dtype: {spec.model.dtype} is not computed here. Use {', '.join(DTYPES)}"
    if not strategies and forced is not None:
        yield (
            f"--strategy {forced}: {spec.cluster.gpus} device(s) can run {' or '.join(_runnable(deployment))}"
        )
    elif not strategies:
        yield (
            "spec.scheduling.strategies: WAA needs two devices. "
            f"Add {' or '.join(ALONE)}, or set spec.cluster.gpus to 2"
        )


def _check_weights(folder: Path) -> None:
    """Raises before anything is started where there is nothing to load; the worker checks the rest."""
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(path.name for path in folder.glob("*.bin"))
    found = f"only {', '.join(pickled)}, whose loading would run code" if pickled else "no weights"
    raise InvalidSpec(
        str(folder),
        [f"holds {found}; convert or download the model as safetensors (model.safetensors)"],
    )
