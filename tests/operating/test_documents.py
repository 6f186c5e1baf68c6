"""The reference page is what the definitions and the reasons say."""

from __future__ import annotations

from pathlib import Path

from exegpt_operator.documents import reference
from exegpt_operator.reasons import MISSING, Reason

ROOT = Path(__file__).parents[2]


def test_the_reference_is_up_to_date() -> None:
    made = reference(sorted((ROOT / "crds").glob("*.yaml")))
    found = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    assert found == made, "python -m exegpt_operator.documents crds > docs/reference.md"
    assert all(f"| `{reason}` |" in found for reason in Reason)
    assert "| `spec.latencyBound.seconds` | number from 0 | required |" in found


def test_every_reason_can_occur() -> None:
    """Somewhere in the operator it is said; being listed among those to act on does not count."""
    said = "".join(
        path.read_text(encoding="utf-8").partition("def summed_up")[
            2 if "summing_up" in path.name else 0
        ]
        for path in (ROOT / "operator").rglob("*.py")
        if path.name != "reasons.py"
    )
    others = [each for each in Reason if each not in MISSING.values()]
    assert not [each.name for each in others if f"Reason.{each.name}" not in said]


def test_the_charts_definitions_are_ours() -> None:
    for path in sorted((ROOT / "crds").glob("*.yaml")):
        chart = ROOT / "charts" / "exegpt-crds" / "templates" / path.name
        assert chart.read_bytes() == path.read_bytes(), f"cp {path.name} to the chart"
