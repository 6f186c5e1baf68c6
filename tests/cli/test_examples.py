from __future__ import annotations

from pathlib import Path

import pytest

from exegpt_cli.wanted import STRATEGIES
from exegpt_planner.manifest import read_manifest
from exegpt_planner.workload import read_workload

EXAMPLES = Path(__file__).parents[2] / "examples"
SMOLLM2_CONTEXT = 8192


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.name)
def test_every_example_is_a_valid_deployment_with_a_valid_workload(file: Path) -> None:
    deployment = read_manifest(file)
    workload = read_workload(deployment.spec.workload, SMOLLM2_CONTEXT)
    assert workload.output.mean > 1


def test_the_laptop_example_can_be_served_on_one_machine() -> None:
    spec = read_manifest(EXAMPLES / "laptop.yaml").spec
    assert spec.model.uri == "demo://smollm2-135m-instruct"
    assert spec.cluster.gpus == 1
    assert set(spec.scheduling.strategies) <= set(STRATEGIES)
    assert read_workload(spec.workload, SMOLLM2_CONTEXT).s99 == 106  # as its comment says
