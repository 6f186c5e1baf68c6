"""What the documents say of the repository is so: links lead somewhere, modules exist, the examples are read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from exegpt_cli.wanted import STRATEGIES
from exegpt_planner.manifest import Deployment, read_manifest

ROOT = Path(__file__).resolve().parent.parent
ROOTS = ("planner", "runner", "cli", "operator")  # where packages lie
LIBRARIES = ROOT / "docs" / "decisions" / "0006-libraries.md"
GIVEN = {"torch", "numpy", "scipy", "pydantic"}  # what the engine and the planner are written in
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
LINK = re.compile(r"\]\(([^)\s]+)\)")
YAML_BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)


def prose(document: Path) -> str:
    """The text outside code blocks."""
    return re.sub(
        r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )


def anchors(document: Path) -> set[str]:
    """The anchors of a document's headings, as GitHub names them."""
    headings = re.findall(r"^#+ (.+)$", prose(document), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings_that_exist(document: Path) -> None:
    broken = []
    for link in LINK.findall(prose(document)):
        if "://" in link:
            continue
        path, _, heading = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (heading and heading not in anchors(target)):
            broken.append(link)
    assert not broken


def modules_named(text: str) -> set[str]:
    """Dotted names of the modules in `text`; in a table's first cell, later names are siblings of the first."""
    named = set(re.findall(r"`(exegpt_\w+(?:\.\w+)*)`", text))
    for cell in re.findall(r"^\| (`exegpt_[^|]*) \|", text, re.MULTILINE):
        first, *others = re.findall(r"`([\w.]+)`", cell)
        package = first.split(".")[0]
        named |= {f"{package}.{other}" for other in others if not other.startswith("exegpt_")}
    return named


def exists(module: str) -> bool:
    path = Path(*module.split("."))
    return any(
        (ROOT / root / path).is_dir() or (ROOT / root / path.with_suffix(".py")).is_file()
        for root in ROOTS
    )


def test_the_architecture_names_modules_that_exist() -> None:
    named = modules_named((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    assert len(named) > 20
    assert not sorted(module for module in named if not exists(module))


def test_the_architecture_names_every_module() -> None:
    named = modules_named((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
    modules = {
        ".".join(path.relative_to(ROOT / root).with_suffix("").parts)
        for root in ROOTS
        for path in (ROOT / root).glob("exegpt_*/*.py")
        if path.name != "__init__.py" and "_pb2" not in path.name
    }
    assert not sorted(modules - named)


def test_the_architecture_is_read_in_one_sitting() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_the_manifest_in_the_readme_can_be_served_on_one_machine(tmp_path: Path) -> None:
    blocks = YAML_BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    deployments = [read_readme(block, tmp_path) for block in blocks]
    assert [each.spec.cluster.gpus for each in deployments] == [1]
    assert set(deployments[0].spec.scheduling.strategies) & set(STRATEGIES)


def read_readme(block: str, folder: Path) -> Deployment:
    file = folder / "readme.yaml"
    file.write_text(block, encoding="utf-8")
    return read_manifest(file)


def test_every_library_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    required = (
        project["dependencies"]
        + extras["runner"]
        + extras["gateway"]
        + extras["local"]
        + extras["operator"]
    )
    names = {re.split(r"[\[>=<]", each)[0] for each in required} - {"exegpt"}
    reasons = LIBRARIES.read_text(encoding="utf-8").replace("-", "_")
    assert not sorted(each for each in names - GIVEN if each.replace("-", "_") not in reasons)
