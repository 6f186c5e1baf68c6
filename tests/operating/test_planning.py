"""The planner as the operator asks it: JSON in, a plan or a refusal out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cli.tables import LARGE, table_up_to
from exegpt_operator.planning import Question, plan, plan_id, without_proof
from exegpt_planner.model_spec import ModelSpec, parse_model_spec
from exegpt_planner.plan import Plan
from exegpt_planner.serving import Serving
from planner.builders import MODEL

GOLDEN = Path(__file__).parents[1] / "golden"
OPT = parse_model_spec((GOLDEN / "model-opt.json").read_text(), source="golden")
LAW = '{"mean": 20, "std": 5, "max": 64}'
QUESTION = Question(
    table=table_up_to(LARGE).model_dump_json(),
    model=MODEL.model_dump_json(),
    workload=f'{{"input": {LAW}, "output": {LAW}}}',
    bound_s=5.0,
    percentile_length=99,
    device_bytes=1 << 30,
    reserve_bytes=0,
    strategies=("RRA", "WAA", "CRA"),
    workers=1,
)


@pytest.mark.parametrize("model", [MODEL, OPT])
def test_a_plan_comes_back_and_its_serving_is_read_again(model: ModelSpec) -> None:
    assert parse_model_spec(model.model_dump_json(), source="test") == model
    answer = plan(replace(QUESTION, model=model.model_dump_json(), device_bytes=1 << 40))
    assert answer.reason == "", answer.message
    found = Plan.model_validate_json(answer.plan)
    assert found.prediction.promised_s <= 5.0
    assert len(plan_id(answer.plan)) == 12
    serving = Serving(
        served_name="m",
        model_path="/models",
        dtype="float32",
        replicas=(("a:7400",), ("b:7400",)),
        plan_id=plan_id(answer.plan),
        plan=without_proof(found),
        table=table_up_to(LARGE),
        workload=None,
    )
    text = serving.model_dump_json()
    assert Serving.model_validate_json(text) == serving
    assert len(text) < len(answer.plan) + len(QUESTION.table) + 1000


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bound_s": 1e-4}, "Infeasible"),
        ({"device_bytes": 1 << 10}, "ModelTooLarge"),
        ({"strategies": ("WAA",)}, "InvalidSpec"),
        ({"model": "{}"}, "InvalidSpec"),
    ],
)
def test_a_refusal_has_its_reason(change: dict[str, object], reason: str) -> None:
    answer = plan(replace(QUESTION, **change))  # type: ignore[arg-type]  # by the names of its fields
    assert answer.plan == ""
    assert answer.message
    assert answer.reason == reason, answer.message
    assert answer.inputs != QUESTION.inputs


def test_equal_questions_have_equal_inputs() -> None:
    assert replace(QUESTION).inputs == QUESTION.inputs
