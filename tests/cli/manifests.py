"""Manifests for tests, and the command line run in this process."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from exegpt_cli.main import main

SMALL: dict[str, Any] = {
    "apiVersion": "exegpt.dev/v1alpha1",
    "kind": "ExeGPTDeployment",
    "metadata": {"name": "small"},
    "spec": {
        "model": {"uri": "file:///nowhere", "servedName": "small"},
        "cluster": {"gpus": 1},
        "latencyBound": {"seconds": 30},
        "workload": {
            "input": {"mean": 12, "std": 4, "max": 24},
            "output": {"mean": 10, "std": 4, "max": 24},
        },
        "scheduling": {"strategies": ["RRA", "CRA"]},
    },
}


def write_manifest(folder: Path, model: Path | None = None, **changes: Any) -> Path:
    """A small deployment of the model folder; `changes` are spec fields, dots become levels."""
    manifest = copy.deepcopy(SMALL)
    if model is not None:
        manifest["spec"]["model"]["uri"] = f"file://{model}"
    for path, value in changes.items():
        *levels, last = path.split("__")
        place = manifest["spec"]
        for level in levels:
            place = place.setdefault(level, {})
        place[last] = value
    file = folder / "small.yaml"
    file.write_text(yaml.safe_dump(manifest))
    return file


def run_cli(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `exegpt` with these arguments."""
    monkeypatch.setattr("sys.argv", ["exegpt", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    assert isinstance(code, int)
    return code
