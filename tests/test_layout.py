"""The shape of the repository that other things rely on."""

from __future__ import annotations

import importlib.metadata
import operator
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
IMPORT_ROOTS = ("planner", "runner", "operator", "cli")


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def test_the_standard_librarys_operator_stays_itself() -> None:
    assert operator.__file__ is not None
    assert operator.__file__.startswith(sysconfig.get_paths()["stdlib"])


def test_import_roots_are_plain_folders() -> None:
    assert not [root for root in IMPORT_ROOTS if (ROOT / root / "__init__.py").exists()]


def test_the_changelog_names_the_packages_version() -> None:
    versions = re.findall(
        r"^## \[(\d+\.\d+\.\d+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    assert versions[0] == importlib.metadata.version("exegpt")


def test_constraints_pin_exactly_and_name_no_index() -> None:
    lines = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert not [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[\w.+!-]+", line)]


def test_python_files_can_be_read_in_a_sitting() -> None:
    long = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in tracked()
        if path.suffix == ".py" and "_pb2" not in path.name
    }
    assert not {name: lines for name, lines in long.items() if lines > 400}


@pytest.mark.slow
def test_generated_stubs_are_up_to_date(tmp_path: Path) -> None:
    scripts = Path(sys.executable).parent
    subprocess.run(
        [
            sys.executable, "-m", "grpc_tools.protoc", "-I", "runner",
            f"--python_out={tmp_path}", f"--grpc_python_out={tmp_path}",
            f"--plugin=protoc-gen-mypy={scripts / 'protoc-gen-mypy'}", f"--mypy_out={tmp_path}",
            f"--plugin=protoc-gen-mypy_grpc={scripts / 'protoc-gen-mypy_grpc'}",
            f"--mypy_grpc_out={tmp_path}",
            "runner/exegpt_wire/worker.proto", "runner/exegpt_wire/gateway.proto",
            "runner/exegpt_wire/profiler.proto",
        ],
        cwd=ROOT,
        check=True,
    )  # fmt: skip
    for made in (tmp_path / "exegpt_wire").iterdir():
        assert made.read_text() == (ROOT / "runner/exegpt_wire" / made.name).read_text(), made.name
