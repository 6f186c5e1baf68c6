"""Plans on devices that are not here: a built-in model or a folder, and step times from published figures."""

from __future__ import annotations

from pathlib import Path

from exegpt_cli.plan_options import PlanOptions
from exegpt_planner.bound import Bound
from exegpt_planner.builtin_models import builtin_model
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.explanation.question import Question
from exegpt_planner.hardware.analytic import analytic_table
from exegpt_planner.hardware.calibrations import calibration
from exegpt_planner.hardware.clusters import cluster_of
from exegpt_planner.lengths import LengthLaw, truncated_normal
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import ModelSpec, read_model_spec
from exegpt_planner.plan import KNOWN
from exegpt_planner.tasks import paper_task
from exegpt_planner.workload import Workload

RESERVE_BYTES = 2 << 30  # of a device: its driver's context, collectives' buffers, workspaces
NEEDED = ("model", "device", "gpus", "bound")
LIMITS = ("bound", "all_answers", "first_token", "gap", "token_time", "arrivals")


def imagine(options: PlanOptions) -> Question:
    """What the options ask for; raises `InvalidSpec` with all their problems."""
    problems = [f"--{name} is missing" for name in NEEDED if getattr(options, name) is None]
    if options.file is not None:
        problems.append(f"-f plans for this machine; leave it or {', '.join(options.imagined)} out")
    lengths = (options.input_lengths, options.output_lengths)
    if (options.task is None) == (lengths == (None, None)):
        problems.append(
            "lengths come from --task, or from --input-lengths and --output-lengths: give one"
        )
    elif options.task is None and None in lengths:
        problems.append("--input-lengths and --output-lengths go together")
    for name in LIMITS:
        given = getattr(options, name)
        if given is not None and not given > 0:
            problems.append(
                f"--{name.replace('_', '-')} must be above 0{' s' * (name != 'arrivals')}, not {given:g}"
            )
    if not 0 < options.percentile <= 100:
        problems.append(f"--percentile must lie in 0 to 100, not {options.percentile:g}")
    if problems:
        raise InvalidSpec("the command line", problems)
    assert options.model is not None
    assert options.device is not None
    assert options.gpus is not None
    assert options.bound is not None
    model = _model(options.model)
    workload = _workload(options, model)
    cluster = cluster_of(options.device, options.gpus)
    efficiencies = calibration(options.device, options.calibration)
    return Question(
        name=options.model.rstrip("/").rsplit("/", 1)[-1],
        table=analytic_table(model, cluster, options.dtype, efficiencies=efficiencies),
        model=model,
        workload=workload,
        bound=Bound(
            seconds=options.bound,
            percentile_length=options.percentile,
            mode="mean" if options.mean else "p99",
            all_answers_s=options.all_answers,
            first_token_s=options.first_token,
            gap_s=options.gap,
            token_s=options.token_time,
            arrivals_per_s=options.arrivals,
        ),
        memory=MemoryBudget(
            device_bytes=cluster.device.memory_bytes,
            reserve_bytes=RESERVE_BYTES,
            holds_activations=False,
        ),
        strategies=KNOWN if options.strategy is None else (options.strategy,),
        devices=options.gpus,
    )


def _model(name: str) -> ModelSpec:
    return (
        read_model_spec(Path(name)) if "/" in name or Path(name).is_dir() else builtin_model(name)
    )


def _workload(options: PlanOptions, model: ModelSpec) -> Workload:
    if options.task is not None:
        workload = paper_task(options.task)
    else:
        assert options.input_lengths is not None
        assert options.output_lengths is not None
        laws = (
            _law("--input-lengths", options.input_lengths),
            _law("--output-lengths", options.output_lengths),
        )
        workload = Workload.independent(*laws, source="truncated normal")
    longest = workload.input.max + workload.output.max
    if longest > model.context:
        problem = (
            f"the longest prompt and answer make {longest} tokens, the model takes {model.context}"
        )
        raise InvalidSpec("the command line", [problem])
    return workload


def _law(option: str, text: str) -> LengthLaw:
    """The law of `mean=..,std=..,max=..`."""
    given = dict(part.strip().partition("=")[::2] for part in text.split(","))
    if sorted(given) != ["max", "mean", "std"]:
        raise InvalidSpec(option, [f"{text!r} is not mean=NUMBER,std=NUMBER,max=NUMBER"])
    try:
        return truncated_normal(float(given["mean"]), float(given["std"]), int(given["max"]))
    except ValueError:
        raise InvalidSpec(option, [f"{text!r} does not hold numbers"]) from None
