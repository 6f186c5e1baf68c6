"""The stored formats: what was written stays readable and means the same, and docs/formats.md shows it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import TypeAdapter, ValidationError

from exegpt_planner.errors import InvalidSpec
from exegpt_planner.manifest import read_manifest
from exegpt_planner.model_spec import LlamaSpec, OptSpec, T5Spec
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.schedule import (
    AnySchedule,
    CraSchedule,
    RraSchedule,
    Schedule,
    WaaSchedule,
)
from exegpt_planner.strict import StrictModel, parse, read_json
from exegpt_planner.workload import read_trace, read_workload

GOLDEN = Path(__file__).parents[1] / "golden"
FORMATS = Path(__file__).parents[2] / "docs" / "formats.md"
MODELS: dict[str, type[StrictModel]] = {
    "model.json": LlamaSpec,
    "model-opt.json": OptSpec,
    "model-t5.json": T5Spec,
    "profile.json": ProfileTable,
    "profile-t5.json": ProfileTable,
}


def blocks(language: str) -> list[str]:
    """The fenced blocks of docs/formats.md in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", FORMATS.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("name", MODELS)
def test_a_stored_file_is_read_and_written_back_unchanged(name: str) -> None:
    stored = (GOLDEN / name).read_text()
    value = read_json(MODELS[name], GOLDEN / name)
    assert value.model_dump_json(by_alias=True, indent=2) + "\n" == stored


@pytest.mark.parametrize("name", MODELS)
def test_a_file_of_another_version_is_refused(name: str) -> None:
    data = json.loads((GOLDEN / name).read_text())
    with pytest.raises(InvalidSpec, match=r"version: Input should be 'exegpt\.[a-z]+/v1'"):
        parse(MODELS[name], data | {"version": "exegpt.model/v2"}, source=name)


def test_the_stored_manifest_is_read_and_written_back_unchanged() -> None:
    stored: dict[str, Any] = yaml.safe_load((GOLDEN / "manifest.yaml").read_text())
    deployment = read_manifest(GOLDEN / "manifest.yaml")
    assert deployment.model_dump(mode="json", by_alias=True, exclude_unset=True) == stored


def test_the_stored_manifest_sets_every_field_but_the_trace() -> None:
    """So that a field that is renamed or dropped shows."""

    def unset(value: Any, path: str) -> list[str]:
        if isinstance(value, dict):
            return [each for key in value for each in unset(value[key], f"{path}.{key}")]
        return [path] if value is None else []

    dumped = read_manifest(GOLDEN / "manifest.yaml").model_dump(by_alias=True)
    assert unset(dumped["spec"], "spec") == [
        "spec.workload.input.histogram",
        *(f"spec.workload.output.{name}" for name in ("mean", "std", "max")),
        "spec.workload.trace",
    ]


def test_the_stored_manifests_workload_is_read() -> None:
    workload = read_workload(read_manifest(GOLDEN / "manifest.yaml").spec.workload, 512)
    assert workload.input.mean == pytest.approx(128.5)
    assert workload.output.mean == pytest.approx((16 * 120 + 64 * 310 + 256 * 70) / 500)
    assert workload.s99 == 256


def test_the_stored_trace_is_read() -> None:
    np.testing.assert_array_equal(
        read_trace(GOLDEN / "trace.csv"), [[128, 120], [64, 70], [200, 215], [32, 28], [128, 131]]
    )


def test_the_stored_schedules_are_read_and_written_back_unchanged() -> None:
    stored = json.loads((GOLDEN / "schedules.json").read_text())
    every: TypeAdapter[list[AnySchedule]] = TypeAdapter(list[AnySchedule])
    schedules = every.validate_python(stored)
    assert every.dump_python(schedules, mode="json") == stored
    planned: TypeAdapter[Schedule] = TypeAdapter(Schedule)
    assert planned.validate_python(stored[0]) == RraSchedule(encode_batch=52, encode_interval=13)
    assert planned.validate_python(stored[1]) == WaaSchedule(
        encoders=1, decoders=3, encode_batch=8, pool=96
    )
    assert planned.validate_python(stored[2]) == CraSchedule(pool=96, chunk_tokens=512, units=2)
    with pytest.raises(ValidationError, match="'RRA', 'WAA', 'CRA'"):
        planned.validate_python(stored[3])


def test_the_stored_model_has_its_published_size() -> None:
    spec = read_json(LlamaSpec, GOLDEN / "model.json")
    assert spec.num_parameters == 1_235_814_400  # Llama 3.2 1B
    assert spec.kv_bytes_per_token("bfloat16") == 32_768
    assert spec.fingerprint == "27d86e8cddec2d94"  # changes make every stored profile unusable


def test_the_stored_opt_has_its_published_size() -> None:
    spec = read_json(OptSpec, GOLDEN / "model-opt.json")
    assert spec.num_parameters == 12_853_473_280  # OPT 13B
    assert spec.kv_bytes_per_token("float16") == 819_200  # 0.82 MB


@pytest.mark.parametrize("name", MODELS)
def test_the_documented_example_is_the_stored_file(name: str) -> None:
    assert json.loads((GOLDEN / name).read_text()) in [json.loads(each) for each in blocks("json")]


def test_the_documented_manifest_trace_and_schedules_are_the_stored_ones() -> None:
    stored = yaml.safe_load((GOLDEN / "manifest.yaml").read_text())
    assert stored in [yaml.safe_load(each) for each in blocks("yaml")]
    assert (GOLDEN / "trace.csv").read_text() in blocks("csv")
    assert (GOLDEN / "schedules.json").read_text() in blocks("json")
