"""`exegpt explain`: text, JSON and page say the same; what cannot be is explained too, and still an error."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cli.manifests import run_cli, write_manifest
from cli.small_model import write_small_model
from cli.tables import store_table
from exegpt_cli.cache import Cache
from exegpt_cli.page import page
from exegpt_planner.explain import explanation_text
from exegpt_planner.explanation.record import ANY_EXPLANATION, Explanation, NoPlan
from exegpt_planner.hardware.devices import device

TOO_LARGE = ("--model", "opt-13b", "--device", "l4", "--gpus", "1", "--task", "S", "--bound", "inf")
ASKED = ("--model", "opt-13b", "--device", "a40", "--task", "S", "--strategy", "RRA")
VOID = {"meta", "link"}


class Reader(HTMLParser):
    """Tags in balance, and what a browser would fetch or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.fetched += [
            value or ""
            for name, value in attrs
            if name in ("src", "href", "srcset", "xlink:href") and not (value or "").startswith("#")
        ]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def explained(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *arguments: str,
    rc: int = 0,
) -> Explanation | NoPlan:
    assert run_cli(monkeypatch, "explain", *arguments, "--points", "3", "-o", "json") == rc
    return ANY_EXPLANATION.validate_json(capsys.readouterr().out)


def test_a_page_holds_every_number_and_needs_nothing_else(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = explained(capsys, monkeypatch, *ASKED, "--gpus", "2", "--bound", "5.9")
    assert isinstance(found, Explanation)
    text = page(found)
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    assert reader.fetched == ["data:,"]  # no icon is asked for
    assert "script" not in reader.tags
    assert not re.search(r"url\(|@import|https?://", text)
    values = {float(value) for value in re.findall(r'<data value="([^"]+)">', text)}
    for each in found.frontier.points:
        assert {each.queries_per_s, each.promised_s} <= values
    for use in found.uses:
        for spent in use.spent:
            assert {spent.seconds, spent.share} <= values
            assert {part.seconds for part in spent.parts} <= values
    for point in found.margin.points:
        assert {point.factor, point.output_mean} <= values
        assert point.promised_s is None or point.promised_s in values
    for trend in found.trends:
        assert {float(each) for each in (*trend.throughput_against, trend.num_pairs)} <= values
        assert {each.queries_per_s for each in trend.through_chosen} <= values
    for stage in found.stages:
        assert {stage.weight_bytes, stage.kv_bytes, stage.free_bytes} <= values


def test_names_are_escaped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = explained(capsys, monkeypatch, *TOO_LARGE, rc=4)
    wicked = found.asked.model_copy(update={"model": "<script>alert(1)</script>"})
    text = page(found.model_copy(update={"asked": wicked}))
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_every_format_comes_from_one_record(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (*ASKED, "--gpus", "1", "--bound", "20", "--points", "3")
    found = explained(capsys, monkeypatch, *ASKED, "--gpus", "1", "--bound", "20")
    assert run_cli(monkeypatch, "explain", *arguments) == 0
    assert capsys.readouterr().out == explanation_text(found)
    assert run_cli(monkeypatch, "explain", *arguments, "-o", "html") == 0
    assert capsys.readouterr().out == page(found) + "\n"


def test_what_no_schedule_keeps_is_explained_and_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (*ASKED, "--gpus", "1", "--bound", "2")
    assert run_cli(monkeypatch, "explain", *arguments, "-o", "json") == 4
    out, err = capsys.readouterr()
    found = ANY_EXPLANATION.validate_json(out)
    assert isinstance(found, NoPlan)
    assert found.error in " ".join(err.split())
    assert found.cluster is not None
    assert found.cluster.prediction is not None
    assert found.cluster.prediction.promised_s <= 2
    *smaller, enough = found.cluster.tried
    assert smaller == list(range(1, enough))
    for devices, rc in ((smaller[-1], 4), (enough, 0)):
        plan = ("plan", *ASKED, "--gpus", str(devices), "--bound", "2", "-o", "json")
        assert run_cli(monkeypatch, *plan) == rc
        capsys.readouterr()
    text = page(found)
    assert "No schedule keeps this bound" in text
    assert f"has {enough} devices" in text


def test_a_model_that_does_not_fit_says_which_stage_lacks_what(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = explained(capsys, monkeypatch, *TOO_LARGE, rc=4)
    assert isinstance(found, NoPlan)
    assert found.binds == "memory"
    (stage,) = found.stages
    assert stage.weight_bytes == 2 * 12_853_473_280  # OPT 13B in float16
    assert stage.free_bytes == device("l4").memory_bytes - stage.kept_bytes - stage.weight_bytes
    assert found.cluster is not None
    assert found.cluster.tried == (1, 2)
    assert "lacks" in page(found)


@pytest.fixture
def manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment whose profile is on file."""
    model = tmp_path / "model"
    write_small_model(model)
    store_table(Cache(tmp_path / "cache"), model, "float32")
    monkeypatch.setenv("EXEGPT_CACHE", str(tmp_path / "cache"))
    return write_manifest(tmp_path, model, model__dtype="float32", latencyBound__seconds=0.15)


def test_a_manifests_plan_is_explained_on_its_profile(
    manifest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = explained(capsys, monkeypatch, "-f", str(manifest))
    assert isinstance(found, Explanation)
    assert found.asked.source == "measured"
    assert found.asked.model == "small"
    assert found.binding.profile_used is not None
    assert [each.devices for each in found.changes] == [2, 1]
    assert run_cli(monkeypatch, "plan", "-f", str(manifest), "-o", "json") == 0
    planned = json.loads(capsys.readouterr().out)
    assert found.plan.schedule.model_dump(mode="json") == planned["schedule"]


def test_a_manifests_unreachable_bound_is_explained(
    manifest: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = manifest.read_text().replace("seconds: 0.15", "seconds: 0.001")
    manifest.write_text(text)
    found = explained(capsys, monkeypatch, "-f", str(manifest), rc=4)
    assert isinstance(found, NoPlan)
    assert found.binds == "latency"
    assert found.cluster is None


def test_only_explanations_can_be_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_cli(monkeypatch, "plan", *ASKED, "--gpus", "1", "--bound", "5", "-o", "html") == 2
