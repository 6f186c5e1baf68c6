"""The page of `exegpt explain -o html` in a real browser: it is whole, legible and says what the JSON says."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from playwright.sync_api import Browser, Page

from exegpt_cli.page.drawing import WIDE as LOGARITHMIC

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

ASKED = (
    "--model",
    "opt-13b",
    "--device",
    "a40",
    "--gpus",
    "4",
    "--task",
    "S",
    "--bound",
    "5.9",
    "--points",
    "6",
)
CURVES = {
    "frontier",
    "margin",
    "margin-throughput",
    "pool-throughput",
    "pool-promise",
    "chunk_tokens-throughput",
    "chunk_tokens-promise",
}
BARS = {"time", "work", "memory", "ranking"}
WIDE, PHONE = (1280, 900), (390, 844)


class Made(NamedTuple):
    """What the command wrote."""

    page: Path
    answer: dict[str, Any]


class Shown(NamedTuple):
    """A page in a window, with what it complained of and asked for."""

    page: Page
    complaints: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    def written(output: str) -> str:
        command = [sys.executable, "-m", "exegpt_cli.main", "explain", *ASKED, "-o", output]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    path = tmp_path_factory.mktemp("page") / "plan.html"
    path.write_text(written("html"), encoding="utf-8")
    return Made(path, json.loads(written("json")))


@pytest.fixture(
    params=[(WIDE, "light"), (WIDE, "dark"), (PHONE, "light"), (PHONE, "dark")],
    ids=["wide-light", "wide-dark", "phone-light", "phone-dark"],
)
def shown(request: pytest.FixtureRequest, browser: Browser, made: Made) -> Iterator[Shown]:
    (width, height), scheme = request.param
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    complaints: list[str] = []
    requests: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: requests.append(asked.url))
    page.goto(made.page.as_uri())
    yield Shown(page, complaints, requests)
    page.close()


def test_it_is_one_file_without_complaints(shown: Shown, made: Made) -> None:
    assert shown.complaints == []
    assert [each for each in shown.requests if not each.startswith("data:")] == [made.page.as_uri()]


def test_nothing_is_wider_than_the_window(shown: Shown) -> None:
    wide, inner = shown.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= inner


def test_every_plot_is_seen_and_the_chosen_point_is_in_it(shown: Shown) -> None:
    plots = {
        each.get_attribute("data-plot"): each for each in shown.page.locator("svg[data-plot]").all()
    }
    assert set(plots) == CURVES | BARS
    for name, plot in plots.items():
        plot.scroll_into_view_if_needed()
        assert plot.is_visible(), name
        box = plot.bounding_box()
        assert box is not None
        assert box["width"] > 250, name
        assert box["height"] > 60, name
        titles = plot.locator(".axis-title").all_text_contents()
        assert len(titles) == (2 if name in CURVES else 1), name
        if name in CURVES | {"ranking"}:
            chosen = plot.locator(".chosen")
            assert chosen.count() == 1, name
            point = chosen.bounding_box()
            assert point is not None
            assert point["width"] > 0
            assert box["x"] <= point["x"]
            assert point["x"] + point["width"] <= box["x"] + box["width"]
            assert box["y"] <= point["y"]
            assert point["y"] + point["height"] <= box["y"] + box["height"]


def test_letters_can_be_read_and_lie_inside_their_plots(shown: Shown) -> None:
    sizes = shown.page.evaluate(
        """() => [...document.querySelectorAll("svg[data-plot]")].flatMap(svg => {
             const frame = svg.getBoundingClientRect();
             return [...svg.querySelectorAll("text")].map(text => {
               const box = text.getBoundingClientRect();
               const scale = frame.width / svg.viewBox.baseVal.width;
               return {
                 text: text.textContent, plot: svg.dataset.plot,
                 size: scale * parseFloat(getComputedStyle(text).fontSize),
                 outside: box.left < frame.left - 1 || box.right > frame.right + 1
                          || box.top < frame.top - 1 || box.bottom > frame.bottom + 1,
               };
             });
           })"""
    )
    assert len(sizes) > 60
    assert [each for each in sizes if each["size"] < 8] == []
    assert [each for each in sizes if each["outside"]] == []


def test_text_stands_out_from_its_ground(shown: Shown) -> None:
    """Contrast of at least 4.5 (WCAG AA), in light and dark."""
    ratios = shown.page.evaluate(
        """() => {
             const light = colour => {
               const [r, g, b] = colour.match(/[\\d.]+/g).map(Number).map(v => {
                 const s = v / 255; return s <= .03928 ? s / 12.92 : ((s + .055) / 1.055) ** 2.4;
               });
               return .2126 * r + .7152 * g + .0722 * b;
             };
             const ratio = (a, b) => (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
             const ground = light(getComputedStyle(document.documentElement).backgroundColor);
             const raised = light(getComputedStyle(document.querySelector("figure")).backgroundColor);
             const of = (query, what, on) => ratio(light(
               getComputedStyle(document.querySelector(query))[what]), on);
             return {
               body: of("p", "color", ground), heading: of("h1", "color", ground),
               note: of(".note", "color", raised), link: of("nav a", "color", ground),
               tick: of("svg .tick", "fill", raised), title: of("svg .axis-title", "fill", raised),
               rule: of("svg .rule-label", "fill", raised),
             };
           }"""
    )
    assert {name: ratio for name, ratio in ratios.items() if ratio < 4.5} == {}


def numbers(page: Page, plot: str) -> list[list[float | None]]:
    """The rows of a plot's table as the page holds them, words as None."""
    figure = page.locator(f"figure:has(svg[data-plot='{plot}'])")
    if figure.locator("details:not([open]) summary").count():
        figure.locator("summary").click()
    assert figure.locator("table").is_visible()
    rows = figure.locator("tbody tr").evaluate_all(
        """rows => rows.map(row => [...row.children].map(cell => {
             const data = cell.querySelector("data"); return data && data.value;
           }))"""
    )
    return [[None if value is None else float(value) for value in row] for row in rows]


def test_the_numbers_are_those_of_the_json(shown: Shown, made: Made) -> None:
    page, answer = shown.page, made.answer
    frontier = [
        [
            None if each["bound_s"] == "Infinity" else each["bound_s"],
            each["queries_per_s"],
            each["promised_s"],
            None,
        ]
        for each in answer["frontier"]["points"]
    ]
    assert numbers(page, "frontier") == frontier
    ranking = [
        [None, None, each["prediction"]["queries_per_s"], each["prediction"]["promised_s"], None]
        for each in answer["ranking"]
    ]
    assert numbers(page, "ranking") == ranking
    margin = [
        [
            each["factor"],
            each["output_mean"],
            each["length_tokens"],
            each["promised_s"],
            each["queries_per_s"],
            each["memory_used"],
            None,
        ]
        for each in answer["margin"]["points"]
    ]
    assert numbers(page, "margin") == margin
    shares = [row[-1] for row in numbers(page, "time")]
    for use in answer["uses"]:
        for spent in use["spent"]:
            assert spent["share"] in shares
            assert {part["share"] for part in spent["parts"]} <= set(shares)
    (stage,) = answer["stages"]
    held = [stage[f"{name}_bytes"] for name in ("weight", "kv", "kept", "free")]
    assert numbers(page, "memory") == [[None, *held, None]]


def test_points_lie_where_their_numbers_say(shown: Shown, made: Made) -> None:
    """The frontier's dots, read back from the screen: as far along both axes as bound and throughput are."""
    dots = shown.page.locator("svg[data-plot=frontier] circle").evaluate_all(
        "dots => dots.map(dot => [+dot.getAttribute('cx'), +dot.getAttribute('cy')])"
    )
    points = [each for each in made.answer["frontier"]["points"] if each["bound_s"] != "Infinity"]
    assert len(dots) == len(points)
    dots.sort()
    (x0, y0), (x1, y1) = dots[0], dots[-1]
    first, last = points[0], points[-1]
    is_log = last["bound_s"] >= LOGARITHMIC * first["bound_s"]
    for (x, y), each in zip(dots, points, strict=True):
        begin, here, end = (p["bound_s"] for p in (first, each, last))
        along = (here - begin) / (end - begin)
        if is_log:
            along = math.log(here / begin) / math.log(end / begin)
        up = (each["queries_per_s"] - first["queries_per_s"]) / (
            last["queries_per_s"] - first["queries_per_s"]
        )
        assert x == pytest.approx(x0 + along * (x1 - x0), abs=0.2)
        assert y == pytest.approx(y0 + up * (y1 - y0), abs=0.2)


def test_it_prints_with_its_numbers(browser: Browser, made: Made, tmp_path: Path) -> None:
    page = browser.new_page()
    page.goto(made.page.as_uri())
    page.emulate_media(media="print")
    table = page.locator("figure:has(svg[data-plot='frontier']) table")
    box = table.bounding_box()
    assert box is not None
    assert box["height"] > 100  # though its details are closed
    assert not page.locator("nav").is_visible()
    printed = tmp_path / "plan.pdf"
    page.pdf(path=str(printed), format="A4")
    assert printed.read_bytes().startswith(b"%PDF")
    page.close()
