"""The reference page is what the definitions and the reasons say."""

from __future__ import annotations

from pathlib import Path

from exegpt_operator.documents import reference
from exegpt_operator.reasons import Reason

ROOT = Path(__file__).parents[2]


def test_the_reference_is_up_to_date() -> None:
    made = reference(sorted((ROOT / "crds").glob("*.yaml")))
    found = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert found == made, "python -m exegpt_operator.documents crds > docs/reference.md"
    assert all(f"| `{reason}` |" in found for reason in Reason)
    assert "| `spec.latencyBound.seconds` | number from 0 | required |" in found


def test_the_charts_definitions_are_ours() -> None:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        chart = ROOT / "charts" / "exegpt-crds" / "templates" / path.name
        assert chart.read_bytes() == path.read_bytes(), f"cp {path.name} to the chart"
