"""WAA on sides of shapes of their own: the closed form beside the simulation, and the search beside every schedule."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from exegpt_planner.bound import Bound
from exegpt_planner.builtin_models import builtin_model
from exegpt_planner.certificate import certify, check
from exegpt_planner.completion import CompletionLaw, law_on
from exegpt_planner.events import run
from exegpt_planner.events.queries import Backlog
from exegpt_planner.events.records import Until
from exegpt_planner.hardware.analytic import analytic_table
from exegpt_planner.hardware.clusters import cluster_of
from exegpt_planner.layout import Layout, Side, Typical, one_sided
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.plan import make_plan
from exegpt_planner.profile_table import EncoderCurves, ProfileTable
from exegpt_planner.schedule import WaaSchedule
from exegpt_planner.search import Candidate
from exegpt_planner.shapes import Room, Shape, micro_batches, room_of
from exegpt_planner.simulator import simulate
from exegpt_planner.simulator.models import model_for
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.simulator.waa import WaaModel
from exegpt_planner.splits import devices_of, named_splits
from exegpt_planner.tasks import paper_task
from exegpt_planner.waa_search import search_waa
from exegpt_planner.waa_sites import WaaSites
from planner.builders import rough_parallel, rough_table
from planner.spaces import NUM_WORKLOADS, workload

A40 = MemoryBudget(device_bytes=48 << 30, reserve_bytes=2 << 30, holds_activations=False)

# degrees of an encoder's stages, x; of a decoder's, y and M; B_E, B_D
CASES = [
    ((1,), 1, (2,), 1, 1, 8, 60),
    ((1,), 2, (1, 1), 1, 2, 8, 120),
    ((1,), 2, (1, 1), 1, 1, 8, 60),
    ((1,), 2, (1, 1, 1), 1, 4, 8, 150),
    ((1,), 3, (1, 1, 1), 1, 2, 6, 60),
    ((2,), 2, (2, 1), 1, 3, 6, 140),
    ((1, 1), 1, (1,), 1, 1, 8, 60),
    ((1, 1), 1, (1,), 2, 1, 8, 100),
    ((1, 1, 1), 1, (1, 1), 1, 2, 8, 200),
    ((1, 1, 1, 1), 1, (2, 2), 2, 3, 12, 200),
]


@cache
def machine(model: str) -> ProfileTable:
    return analytic_table(builtin_model(model), cluster_of("a40", 16), "float16")


def side_layout(table: ProfileTable, law: CompletionLaw, degrees: tuple[int, ...], side: Side) -> Layout:  # fmt: skip
    found = one_sided(table, Typical.of(law, table), sum(degrees), side)
    return next(each for each in found if tuple(s.degree for s in each.stages) == degrees)


def assert_agrees(model: str, task: str, case: tuple[object, ...], queries: int) -> None:
    """Throughput within 3 %, mean and 99th percentile of latency within 3 % and 5 %, sampling included."""
    encoder, x, decoder, y, number, batch, pool = case
    table, law = machine(model), law_on(machine(model), paper_task(task).with_probes(0.2))
    schedule = WaaSchedule.model_validate(
        {
            "encoders": x,
            "decoders": y,
            "encode_batch": batch,
            "pool": pool,
            "micro_batches": number,
            "encoder_layout": side_layout(table, law, encoder, "encode"),  # type: ignore[arg-type]
            "decoder_layout": side_layout(table, law, decoder, "decode"),  # type: ignore[arg-type]
        }
    )
    expected = simulate(schedule, table, paper_task(task).with_probes(0.2))
    backlog = Backlog.of(law.workload, np.random.default_rng(7))
    seen = run(schedule, table, backlog, Until(queries=queries, warm_up=queries // 3))
    latencies = seen.latencies_s(law.workload.output.quantile(0.99))
    assert expected.queries_per_s == pytest.approx(seen.queries_per_s, rel=0.03)
    assert expected.pool_mean == pytest.approx(seen.pool_mean, rel=0.04)
    assert expected.latency_mean_s == pytest.approx(latencies.mean(), rel=0.03)
    assert expected.latency_p99_s == pytest.approx(float(np.quantile(latencies, 0.99)), rel=0.05)


@pytest.mark.parametrize("case", CASES)
def test_the_closed_form_is_what_queries_see(case: tuple[object, ...]) -> None:
    assert_agrees("opt-13b", "S", case, 3000)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("model", "task"), [("opt-13b", "C1"), ("t5-11b", "S"), ("t5-11b", "T")])
def test_the_closed_form_is_what_queries_see_for_other_lengths_and_models(
    model: str, task: str, case: tuple[object, ...]
) -> None:
    assert_agrees(model, task, case, 6000)


def random_sites(seed: int) -> tuple[WaaSites, Promise]:
    """All pairs on two to four devices of a rough machine, some with an encoder, some with little room."""
    rng = np.random.default_rng(seed)
    index = int(rng.integers(NUM_WORKLOADS))
    reach, context = int(rng.choice([4, 8])), float(rng.choice([150, 400]))
    table = rough_table(rng, reach=reach, context=context)
    table = rough_parallel(table, rng, reach=reach, context=context)
    if seed % 4 == 3:
        layers, encoder = table.num_layers, table.layer
        table = table.model_copy(
            update={
                "encoder": EncoderCurves(num_layers=layers + 1, layer=encoder),
                "parallel": table.parallel
                and table.parallel.model_copy(
                    update={
                        "degrees": tuple(
                            each.model_copy(update={"encoder_layer": each.layer})
                            for each in table.parallel.degrees
                        )
                    }
                ),
            }
        )
    law = law_on(table, workload(index))
    typical = Typical.of(law, table)
    devices = int(rng.choice([2, 3, 4, 4]))
    sides: dict[Side, list[Shape]] = {"encode": [], "decode": []}
    for side, found in sides.items():
        for size in range(1, devices):
            for layout in one_sided(table, typical, size, side):
                room = Room(
                    kv_tokens=int(rng.choice([150, 600, 10**6])),
                    activation_tokens=float(rng.choice([0.0, 0.3])),
                    stage=0,
                )
                numbers = micro_batches(len(layout.stages)) if side == "decode" else [1]
                found += [
                    Shape(units=1, layout=layout, micro_batches=number, room=room)
                    for number in numbers
                ]
    length = law.workload.output.quantile(0.99)
    sds, error = float(rng.choice([0.0, 2.3])), float(rng.choice([0.0, 0.05]))
    return WaaSites(table, law, devices, sides), Promise(length=length, sds=sds, error=error)


def every_one(sites: WaaSites, promise: Promise) -> list[Candidate]:
    """All schedules that fit, pair by pair."""
    found = []
    for site in sites:
        if site.model.max_batch == 0:
            continue
        space = site.space(promise)
        found += [
            Candidate(
                point=point, throughput=space.throughput(point), promised_s=space.promised_s(point)
            )
            for point in space.whole.points()
            if space.blocked(point) is None
        ]
    return found


def assert_search_is_exhaustive(seed: int) -> None:
    sites, promise = random_sites(seed)
    schedules = every_one(sites, promise)
    if not schedules or any(site.model.max_batch == 0 for site in sites):
        return
    rng = np.random.default_rng((seed, 1))
    promised = schedules[int(rng.integers(len(schedules)))].promised_s
    for bound_s in (np.inf, promised, promised * 1.01, promised * 0.7):
        kept = [each.throughput for each in schedules if each.promised_s <= bound_s]
        searched, left_out = search_waa(sites, promise, bound_s)
        bests = [found.best.throughput for _, _, found in searched if found.best is not None]
        best = max(bests, default=None)
        most = max(kept, default=None)
        assert best == (None if most is None else pytest.approx(most, rel=1e-9)), bound_s
        for site, space, found in searched:
            record = certify(space, found, site.number)
            assert check(record, space, best=best, bound_s=bound_s) == []
        assert all(best is None or each.throughput < best for each in left_out if each.throughput)
        assert len(searched) + sum(each.number for each in left_out) == len(sites)


@pytest.mark.parametrize("seed", range(6))
def test_search_over_all_pairs_finds_what_exhaustive_search_finds(seed: int) -> None:
    assert_search_is_exhaustive(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 506))
def test_search_over_all_pairs_finds_what_exhaustive_search_finds_in_many(seed: int) -> None:
    assert_search_is_exhaustive(seed)


@pytest.mark.parametrize("seed", range(100, 108))
def test_no_schedule_within_the_bound_beats_the_bound_of_its_pair(seed: int) -> None:
    sites, promise = random_sites(seed)
    if any(site.model.max_batch == 0 for site in sites):
        return
    for bound_s in (np.inf, 0.2, 0.05):
        uppers = sites.uppers(replace(promise, bound_s=bound_s))
        for site, upper in zip(sites, uppers, strict=True):
            for each in every_one_of(site, promise, bound_s):
                assert each <= upper * (1 + 1e-9), (site.number, bound_s)


def every_one_of(site: object, promise: Promise, bound_s: float) -> list[float]:
    space = site.space(promise)  # type: ignore[attr-defined]
    return [
        space.throughput(point)
        for point in space.whole.points()
        if space.blocked(point) is None and space.promised_s(point) <= bound_s
    ]


def test_t5_sides_hold_their_own_layers_and_no_more() -> None:
    """Weights of both sides together are the model's, but for the embedding, which both need."""
    t5 = builtin_model("t5-11b")
    table, law = machine("t5-11b"), law_on(machine("t5-11b"), paper_task("S"))
    encoder = side_layout(table, law, (1,), "encode")
    decoder = side_layout(table, law, (1,), "decode")
    assert [(s.layers, s.encoder_layers) for s in (*encoder.stages, *decoder.stages)] == [
        (0, 24),
        (24, 0),
    ]
    per_token = t5.kv_bytes_per_token("float16")
    free = []
    for layout in (encoder, decoder):
        room = room_of(layout, t5, "float16", A40)
        assert room is not None
        free.append(room.kv_tokens * per_token)
    held = 2 * (A40.device_bytes - A40.reserve_bytes) - sum(free)
    both = t5.weight_bytes("float16") + t5.embedding_weight_bytes("float16")
    assert held == pytest.approx(both, abs=3 * per_token)


def test_a_group_of_one_side_never_spans_nodes() -> None:
    law = law_on(machine("opt-13b"), paper_task("S"))
    sites = WaaSites.all(machine("opt-13b"), law, 16, (builtin_model("opt-13b"), A40))
    assert len(sites) > 5000
    rng = np.random.default_rng(3)
    for at in rng.choice(len(sites), 40, replace=False):
        site = sites[int(at)]
        used = site.encoders.units * site.encoders.layout.devices
        assert used + site.shape.units * site.shape.layout.devices == 16
        begins = sites.starts(site.encoders, site.shape)
        for side, begin in zip((site.encoders, site.shape), begins, strict=True):
            device = begin
            for stage in side.layout.stages * side.units:
                assert device // 8 == (device + stage.degree - 1) // 8
                device += stage.degree


def test_the_papers_splits_are_of_devices_where_instances_have_several() -> None:
    """On 16 devices; whatever split WAA-C names, times of a device and not of an instance decide."""
    table = machine("opt-13b")
    law = law_on(table, paper_task("S"))
    named = []
    for degree in (1, 2):
        layout = side_layout(table, law, (degree,), "encode")
        schedule = WaaSchedule(
            encoders=8 // degree,
            decoders=8 // degree,
            encode_batch=8,
            pool=120,
            encoder_layout=layout,
            decoder_layout=layout,
        )
        model = model_for(schedule, table, law)
        assert isinstance(model, WaaModel)
        assert devices_of(model) == (8, 8)
        named.append(named_splits(model, 8, 120))
        encode_s, decode_s = model.query_costs_s(8, 120)
        share = encode_s / (encode_s + decode_s)
        assert named[-1]["WAA-C"] == (round(16 * share), 16 - round(16 * share))
    assert all(sum(split) == 16 for each in named for split in each.values())


def test_uneven_sides_win_where_encodes_take_most() -> None:
    """OPT-13B on four A40: three of them together do what no two alike pairs do."""
    table = analytic_table(builtin_model("opt-13b"), cluster_of("a40", 4), "float16")
    plan = make_plan(
        table=table,
        model=builtin_model("opt-13b"),
        workload=paper_task("S"),
        bound=Bound(seconds=2.9, mode="mean"),
        memory=A40,
        strategies=("WAA",),
        workers=4,
        with_sensitivity=False,
    )
    schedule = plan.schedule
    assert isinstance(schedule, WaaSchedule)
    assert schedule.encoder_layout is not None
    assert schedule.decoder_layout is not None
    expected = simulate(schedule, table, paper_task("S"))
    assert plan.prediction.queries_per_s == pytest.approx(expected.queries_per_s, rel=1e-3)
    assert plan.prediction.promised_s == pytest.approx(expected.latency_mean_s, rel=1e-3)
    both = schedule.encoder_layout.devices, schedule.decoder_layout.devices
    assert both[0] * schedule.encoders + both[1] * schedule.decoders == 4
