"""The planner, in a process of its own: a search takes seconds of a core, and the loop must go on.

What goes in and comes out is JSON, so that nothing is shared and everything can be put on file. As a program it reads a
question and writes its answer.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from exegpt_operator.reasons import Reason
from exegpt_planner.bound import Bound
from exegpt_planner.errors import (
    ExeGPTError,
    IncompleteProfile,
    InfeasibleBound,
    InvalidSpec,
    ModelTooLarge,
)
from exegpt_planner.manifest import WorkloadSpec
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.model_spec import parse_model_spec
from exegpt_planner.plan import Plan, make_plan
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.proof import Certificate
from exegpt_planner.strict import parse_json
from exegpt_planner.workload import read_workload

ID_DIGITS = 12
_REASONS: Mapping[type[ExeGPTError], Reason] = {  # the first that fits
    ModelTooLarge: Reason.MODEL_TOO_LARGE,
    InfeasibleBound: Reason.INFEASIBLE,
    IncompleteProfile: Reason.INCOMPLETE_PROFILE,
    InvalidSpec: Reason.INVALID_SPEC,
    ExeGPTError: Reason.PLAN_FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Everything that a plan is a function of, as JSON and numbers."""

    table: str
    model: str
    workload: str  # of a WorkloadSpec, or "null": the prior
    bound_s: float
    percentile_length: float
    device_bytes: int
    reserve_bytes: int
    strategies: tuple[str, ...]
    workers: int

    @property
    def inputs(self) -> str:
        """A hash of all of it."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A plan, or why there is none."""

    inputs: str
    plan: str = ""  # JSON
    reason: str = ""
    message: str = ""


def plan(question: Question) -> Answer:
    """Searches; never raises what the user can act on."""
    try:
        found = _plan(question)
    except ExeGPTError as error:
        reason = next(word for kind, word in _REASONS.items() if isinstance(error, kind))
        return Answer(inputs=question.inputs, reason=str(reason), message=str(error))
    return Answer(inputs=question.inputs, plan=found.model_dump_json())


def _plan(question: Question) -> Plan:
    model = parse_model_spec(question.model, source="the profile's model")
    workload = workload_spec(question.workload)
    return make_plan(
        table=parse_json(ProfileTable, question.table, source="the profile's table"),
        model=model,
        workload=read_workload(workload, model.context),
        bound=Bound(seconds=question.bound_s, percentile_length=question.percentile_length),
        memory=MemoryBudget(
            device_bytes=question.device_bytes, reserve_bytes=question.reserve_bytes
        ),
        strategies=question.strategies,
        workers=question.workers,
        with_sensitivity=False,  # who waits for this plan is a service whose lengths have changed
    )


def workload_spec(text: str) -> WorkloadSpec | None:
    """The lengths in a question; None for the prior."""
    data: Mapping[str, Any] | None = json.loads(text)
    return None if data is None else WorkloadSpec.model_validate(data, by_alias=True)


def plan_id(plan_json: str) -> str:
    """What a plan is called: the first digits of its sha256."""
    return hashlib.sha256(plan_json.encode()).hexdigest()[:ID_DIGITS]


def without_proof(plan: Plan) -> Plan:
    """The plan without its certificate's leaves, for those who only carry it out."""
    proofless = Certificate(spaces=(), inputs=plan.certificate.inputs)
    return plan.model_copy(update={"certificate": proofless})


def main() -> None:
    """Questions from stdin, a line of JSON each; their answers to stdout, a line each, until there are no more."""
    for line in sys.stdin:
        data = json.loads(line)
        del data["inputs"]  # a hash of the rest
        question = Question(**data | {"strategies": tuple(data["strategies"])})
        print(json.dumps(asdict(plan(question))), flush=True)


if __name__ == "__main__":
    main()
