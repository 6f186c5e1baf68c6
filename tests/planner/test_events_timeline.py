"""Timelines: every stage's time is covered, and both files say what the intervals say."""

from __future__ import annotations

import itertools
import json
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from exegpt_planner.errors import IncompleteProfile, InvalidSpec
from exegpt_planner.events.cra import run_cra
from exegpt_planner.events.drawing import svg
from exegpt_planner.events.queries import Backlog, Pool, Query, decode_shape, encode_shape
from exegpt_planner.events.records import Run, Until
from exegpt_planner.events.stages import EvenStages, TableStages, extended
from exegpt_planner.events.timeline import STEPS_SHOWN, perfetto, timeline
from exegpt_planner.events.waa import Machines, run_waa
from exegpt_planner.profile_table import Curve, EncoderCurves, ParallelCurves, ProfileTable
from exegpt_planner.schedule import CraSchedule, WaaSchedule
from planner.builders import line, summarization_like, table
from planner.pipelines import even, played

SVG = "{http://www.w3.org/2000/svg}"
RUN = played(even(3, 3e-2, 1e-2), micro_batches=4, interval=5, cycles=30)


def piped() -> ProfileTable:
    """The affine table, with sends between stages."""
    parallel = ParallelCurves(
        node_devices=4,
        degrees=(),
        send_inside=line(1e-5, 1e-7, 8192),
        send_between=line(1e-4, 1e-6, 8192),
    )
    return table().model_copy(update={"parallel": parallel})


def of_waa() -> Run:
    machine = piped()
    stages = EvenStages(machine, 2)
    assert machine.hand_over is not None
    machines = Machines(encoder=stages, decoder=stages, hand_over=machine.hand_over)
    schedule = WaaSchedule(encoders=1, decoders=2, encode_batch=4, pool=20, micro_batches=2)
    backlog = Backlog.of(summarization_like(), np.random.default_rng(1))
    until = Until(queries=200, warm_up=50)
    return run_waa(schedule, machines, backlog, until)


def of_cra() -> Run:
    backlog = Backlog.of(summarization_like(), np.random.default_rng(1))
    schedule, until = CraSchedule(pool=12, chunk_tokens=32), Until(queries=200, warm_up=50)
    return run_cra(schedule, EvenStages(piped(), 4), backlog, until, micro_batches=3)


RUNS = {"RRA": RUN, "WAA": of_waa(), "CRA": of_cra()}


@pytest.mark.parametrize("name", RUNS)
def test_every_stages_time_is_covered_once(name: str) -> None:
    shown = timeline(RUNS[name], 3)
    for row in shown.rows:
        own = [each for each in shown.intervals if (each.instance, each.stage) == row]
        assert own[0].start_s == 0
        assert own[-1].end_s == pytest.approx(shown.duration_s)
        for before, after in itertools.pairwise(own):
            assert after.start_s == pytest.approx(before.end_s, abs=1e-9)


@pytest.mark.parametrize("name", RUNS)
def test_busy_time_is_that_of_the_steps_also_of_those_cut_by_the_window(name: str) -> None:
    run = RUNS[name]
    begin_s = float(run.rounds_s[0])
    shown = timeline(run, 3)
    for instance, stage in shown.rows:
        spans = np.array([s.spans[stage] for s in run.steps if s.instance == instance])
        within = np.clip(spans - begin_s, 0.0, shown.duration_s)
        busy = [
            each.end_s - each.start_s
            for each in shown.intervals
            if (each.instance, each.stage) == (instance, stage) and each.kind != "idle"
        ]
        assert sum(busy) == pytest.approx(np.diff(within).sum())


def test_idle_time_is_the_bubble_of_the_formula() -> None:
    """P = 3, M = 4: a cycle is M e + N M d of work and a bubble of (P - 1) e - (M - 1) d."""
    shown = timeline(RUN, 1)
    assert shown.duration_s == pytest.approx(4 * 0.03 + 20 * 0.01 + 0.03)
    for stage in range(3):
        idle = [i for i in shown.intervals if i.stage == stage and i.kind == "idle"]
        assert sum(i.end_s - i.start_s for i in idle) == pytest.approx(2 * 0.03 - 3 * 0.01)


@pytest.mark.parametrize("name", RUNS)
def test_the_drawing_has_a_box_for_each_interval_and_says_what_it_is(name: str) -> None:
    shown = timeline(RUNS[name], 4)
    root = ET.fromstring(svg(shown, "three stages <& four micro-batches>"))
    boxes = list(root.iter(f"{SVG}rect"))
    assert len(boxes) == len(shown.intervals)
    kinds = {"encode": "encode,", "decode": "decode,", "mixed": "encode and", "idle": "idle,"}
    for box, each in zip(boxes, shown.intervals, strict=True):
        assert box.get("class", "").split()[0] == each.kind
        assert (box.findtext(f"{SVG}title") or "").startswith(kinds[each.kind])
        assert float(box.get("width", "")) >= 0
    assert root.findtext(f"{SVG}title") == "three stages <& four micro-batches>"
    words = [text.text for text in root.iter(f"{SVG}text")]
    assert {"time, ms", "idle", "0"} <= set(words)
    rows = [f"{shown.instances[i]}, stage {stage + 1}" for i, stage in shown.rows]
    assert set(rows) <= set(words)
    height = float(root.get("viewBox", "").split()[-1])
    assert all(float(box.get("y", "")) + float(box.get("height", "")) < height for box in boxes)


@pytest.mark.parametrize("name", RUNS)
def test_the_drawing_needs_nothing_from_elsewhere(name: str) -> None:
    text = svg(timeline(RUNS[name], 2), name)
    assert text.count("http") == 1  # the namespace
    assert "prefers-color-scheme: dark" in text
    assert not {"script", "image", "use"} & {each.tag for each in ET.fromstring(text).iter()}


@pytest.mark.parametrize("name", RUNS)
def test_the_trace_has_what_its_viewers_require(name: str) -> None:
    shown = timeline(RUNS[name], 3)
    events = json.loads(perfetto(shown))["traceEvents"]
    work = [event for event in events if event["ph"] == "X"]
    assert len(work) == sum(each.kind != "idle" for each in shown.intervals)
    for event in work:
        assert {"name", "cat", "pid", "tid", "ts", "dur", "args"} < set(event)
        assert event["ts"] >= 0
        assert event["ts"] + event["dur"] <= shown.duration_s * 1e6 * (1 + 1e-9)
    named = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["ph"] == "M"}
    for index, instance in enumerate(shown.instances):
        assert named[index, None] == instance
    assert {(e["pid"], e["tid"]) for e in work} <= set(named)


def test_by_default_as_many_rounds_are_shown_as_can_be_told_apart() -> None:
    shown = timeline(RUN)
    steps = 4 * 6  # of a round
    under_way = 1  # round, for what the warm-up left on the stages
    assert shown.rounds == STEPS_SHOWN // steps - under_way
    assert timeline(RUN, 1000).rounds == len(RUN.rounds_s) - 1


def queries(num: int) -> list[Query]:
    return [Query(input=10 + index, output=5) for index in range(num)]


def test_one_stage_takes_the_tables_step_and_more_take_it_together_and_their_sends() -> None:
    machine = piped()
    pool = Pool()
    for query in queries(7):
        pool.join(query, query.iterations)
    for shape in (decode_shape(pool), encode_shape(queries(4))):
        assert TableStages(machine).stage_s(0, shape) == pytest.approx(machine.step_s(shape))
        parts = EvenStages(machine, 3)  # of four layers: one, one and two
        together_s = sum(parts.stage_s(stage, shape) for stage in range(3))
        send_s = 1e-5 + 1e-7 * shape.tokens
        more_s = 2 * machine.step_overhead_s + 2 * send_s
        assert together_s == pytest.approx(machine.step_s(shape) + more_s)


def test_steps_beyond_the_profile_go_on_as_it_ended_and_are_counted() -> None:
    machine = table()
    shape = encode_shape([Query(input=10_000, output=2)])
    assert not machine.covers(shape)
    short_s = machine.step_s(encode_shape([Query(input=8000, output=2)]))
    assert TableStages(machine).stage_s(0, shape) > short_s + 4 * 8e-6 * 2000
    assert RUN.steps_beyond(machine) == 0
    prolonged = extended(Curve(x=(0, 1, 3, 7), seconds=(1.0, 2.0, 2.5, 4.5)))
    points = {0: 1.0, 0.5: 1.5, 1: 2.0, 2: 2.25, 3: 2.5, 5: 3.5, 7: 4.5, 11: 6.5}
    assert {x: prolonged(x) for x in points} == points


def test_stages_that_cannot_be_are_refused() -> None:
    machine = piped()
    encoder = EncoderCurves(num_layers=2, layer=machine.layer)
    with pytest.raises(InvalidSpec, match="4 layers cannot be held by 5 stages"):
        EvenStages(machine, 5)
    with pytest.raises(InvalidSpec, match="the profile has an encoder"):
        TableStages(machine.model_copy(update={"encoder": encoder}))
    with pytest.raises(IncompleteProfile, match="sending activations"):
        EvenStages(table(), 2)
    with pytest.raises(InvalidSpec, match="3 micro-batches cannot share a pool of 2"):
        run_cra(
            CraSchedule(pool=2, chunk_tokens=32),
            TableStages(machine),
            Backlog.of(summarization_like(), np.random.default_rng(1)),
            Until(queries=10, warm_up=0),
            micro_batches=3,
        )
