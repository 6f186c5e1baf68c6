"""Tables from published figures: rooflines by hand, rings, and the paper's own measurements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from exegpt_planner.builtin_models import BUILTIN_MODELS, builtin_model
from exegpt_planner.errors import InvalidSpec
from exegpt_planner.hardware.analytic import analytic_table, degrees
from exegpt_planner.hardware.calibrations import DATASHEET, Efficiencies, calibration
from exegpt_planner.hardware.clusters import cluster_of
from exegpt_planner.hardware.devices import DEVICES, device
from exegpt_planner.hardware.links import EDR, NVLINK, PCIE, Link
from exegpt_planner.hardware.rooflines import Rates
from exegpt_planner.model_spec import T5Spec
from exegpt_planner.profile_table import (
    Curve,
    DegreeCurves,
    LayerCurves,
    OutsideCurves,
    ProfileTable,
    StepShape,
)
from exegpt_planner.schedule import Prediction, RraSchedule
from exegpt_planner.simulator import simulate
from exegpt_planner.strict import parse_json
from exegpt_planner.tasks import paper_task

PEAK = Efficiencies(name="peak", gemm=1.0, attention=1.0, memory=1.0, link=1.0)
CONTEXT = 256.5 + 19.4  # KV tokens a query of task S attends to, in the mean over the pool


def table(
    model: str, name: str, devices: int, efficiencies: Efficiencies = DATASHEET
) -> ProfileTable:
    cluster = cluster_of(name, devices)
    return analytic_table(builtin_model(model), cluster, "float16", efficiencies=efficiencies)


def by_degree(table: ProfileTable) -> dict[int, DegreeCurves]:
    assert table.parallel is not None
    return {each.degree: each for each in table.parallel.degrees}


def as_one(table: ProfileTable, degree: int) -> ProfileTable:
    """The table of a single stage of this degree: its all-reduces counted with the tokens."""
    group = by_degree(table)[degree]
    tokens = group.layer.tokens
    synced = Curve(
        x=tokens.x,
        seconds=tuple(s + group.sync(x) for x, s in zip(tokens.x, tokens.seconds, strict=True)),
    )
    layer = group.layer.model_copy(update={"tokens": synced})
    return table.model_copy(update={"layer": layer, "outside": group.outside, "parallel": None})


def groups(table: ProfileTable) -> Iterator[tuple[LayerCurves, OutsideCurves]]:
    yield table.layer, table.outside
    for each in by_degree(table).values():
        yield each.layer, each.outside
        if each.encoder_layer is not None:
            yield each.encoder_layer, each.outside
    if table.encoder is not None:
        yield table.encoder.layer, table.outside


def curves(table: ProfileTable) -> Iterator[Curve]:
    for layer, outside in groups(table):
        yield from (getattr(layer, name) for name in LayerCurves.model_fields)
        yield from (outside.tokens, outside.sampled)
    yield from (each.sync for each in by_degree(table).values())
    assert table.parallel is not None
    yield from (table.parallel.send_inside, table.parallel.send_between)
    assert table.hand_over is not None
    yield from (table.hand_over.sent, table.hand_over.joined, table.hand_over.exposed)


def test_a_product_takes_the_longer_of_reading_and_computing() -> None:
    rates = Rates.of(device("a100-80"), PEAK, "float16")
    parameters = 4096 * 4096
    curve = rates.products(parameters, row_s=0.0, fixed_s=0.0, last=4096)
    read_s = parameters * 2 / 2.039e12
    for rows in (1, 64, 153, 154, 1000, 4096):
        assert curve(rows) == pytest.approx(max(read_s, 2 * parameters * rows / 312e12), rel=1e-12)
    assert rates.ridge == pytest.approx(312e12 / 2.039e12)  # 153 rows


def test_a_layers_time_is_the_roofline_of_its_weights() -> None:
    """OPT 13B on one A40, float16: 314.6 M parameters a layer; ridge at 149.7 * 0.6 / (0.696 * 0.8) = 161.3 rows."""
    layer = table("opt-13b", "a40", 1).layer
    parameters = 12 * 5120**2 + 13 * 5120
    fixed_s = 8 * 2e-6
    # Two blocks read and write 2 h each twice; q, k, v, attention's sum and the feed-forward are written and read.
    activations_s = (8 * 5120 + 2 * (4 * 5120 + 20480)) * 2 / (696e9 * 0.8)
    assert layer.tokens.x[1] == pytest.approx(161.315, abs=1e-3)
    assert layer.tokens(0) == pytest.approx(fixed_s + parameters * 2 / (696e9 * 0.8))
    assert layer.tokens(100) == pytest.approx(layer.tokens(0) + 100 * activations_s)
    compute_s = 2 * parameters * 1000 / (149.7e12 * 0.6)
    assert layer.tokens(1000) == pytest.approx(fixed_s + compute_s + 1000 * activations_s)


def test_attention_reads_kv_in_decode_and_computes_pairs_in_encode() -> None:
    layer = table("llama-3.1-8b", "h100", 1).layer
    assert layer.decode_context(1e6) == pytest.approx(1e6 * 2 * 8 * 128 * 2 / (3.35e12 * 0.8))
    assert layer.encode_pairs(1e9) == pytest.approx(1e9 * 4 * 32 * 128 / (989.5e12 * 0.5))


def test_what_does_not_happen_costs_nothing() -> None:
    for layer, outside in groups(table("t5-11b", "a40", 8)):
        assert outside.sampled(0) == 0
        for name in ("decode_queries", "decode_context", "encode_chunks", "encode_pairs"):
            assert getattr(layer, name)(0) == 0


def test_the_head_reads_its_weights_for_the_first_row() -> None:
    sampled = table("opt-13b", "a40", 1).outside.sampled
    assert sampled(1) == pytest.approx(2 * 2e-6 + 50_272 * 5120 * 2 / (696e9 * 0.8), rel=0.01)


@pytest.mark.parametrize("model", BUILTIN_MODELS)
@pytest.mark.parametrize("name", ["a40", "b200"])
def test_no_curve_falls_and_all_have_few_knots(model: str, name: str) -> None:
    for curve in curves(table(model, name, 16)):
        assert all(a <= b for a, b in pairwise(curve.seconds))
        assert len(curve.x) <= 4


@pytest.mark.parametrize("model", BUILTIN_MODELS)
def test_no_curve_ends_where_a_schedule_might(model: str) -> None:
    made = table(model, "b200", 48)
    memory_tokens = 48 * 180e9 / builtin_model(model).kv_bytes_per_token("float16")
    for layer, outside in groups(made):
        assert min(layer.tokens.x[-1], outside.tokens.x[-1]) >= 4e6
        for counts in (layer.decode_queries, layer.encode_chunks, outside.sampled):
            assert counts.x[-1] >= 65_536
        assert layer.decode_context.x[-1] >= max(1e8, memory_tokens)
        assert layer.encode_pairs.x[-1] >= 4e6 * builtin_model(model).context


@pytest.mark.parametrize("name", DEVICES)
@pytest.mark.parametrize("model", ["t5-11b", "llama-3.1-8b"])
def test_a_table_reads_back_from_its_json_and_says_what_it_is(name: str, model: str) -> None:
    made = table(model, name, 16)
    assert parse_json(ProfileTable, made.model_dump_json(), source="test") == made
    assert (made.source, made.error_p95, made.num_samples) == ("analytic", 0, 0)
    assert made.key.device == f"analytic: {name}, datasheet"
    assert made.key.model_fingerprint == builtin_model(model).fingerprint


def test_degrees_are_powers_of_two_that_divide_heads_and_kv_heads() -> None:
    assert list(by_degree(table("gpt3-341b", "a40", 48))) == [2, 4, 8]
    assert list(by_degree(table("qwen2.5-7b", "h100", 8))) == [2, 4]  # 28 heads, 4 KV heads
    assert list(by_degree(table("opt-13b", "a40", 4))) == [2, 4]  # four devices are there
    assert degrees(builtin_model("llama-3.1-70b"), 16) == [2, 4, 8]  # 64 heads, 8 KV heads
    assert degrees(builtin_model("gpt3-101b"), 7) == [2, 4]


def test_one_device_has_nobody_to_share_with() -> None:
    alone = table("opt-13b", "a100-80", 1)
    assert alone.parallel is None
    assert alone.hand_over is None


def test_a_group_divides_weights_heads_and_kv() -> None:
    made = table("gpt3-175b", "a100-80", 16)
    for degree, group in by_degree(made).items():
        ratio = group.layer.decode_context(1e6) / made.layer.decode_context(1e6)
        assert ratio == pytest.approx(1 / degree)
        assert group.layer.encode_pairs(1e9) == pytest.approx(made.layer.encode_pairs(1e9) / degree)
        read = made.layer.tokens(0) - 16e-6, group.layer.tokens(0) - 16e-6
        assert read[1] == pytest.approx(read[0] / degree)


def test_a_ring_moves_what_the_formula_says() -> None:
    link = Link(name="test", bytes_per_s=1e9, latency_s=1e-6, source="test")
    for devices in (2, 4, 8):
        reduce_s = link.all_reduce(1.0, devices)(5e6)
        assert reduce_s == pytest.approx(2 * (devices - 1) * (1e-6 + 5e6 / devices / 1e9))
        gather_s = link.all_gather(1.0, devices)(5e6)
        assert gather_s == pytest.approx(reduce_s / 2)
    assert link.all_reduce(1.0, 1)(5e6) == 0
    assert link.send(1.0)(5e6) == pytest.approx(1e-6 + 5e-3)


def test_links_have_their_standards_bandwidths() -> None:
    assert PCIE[4].bytes_per_s == pytest.approx(31.5e9, rel=1e-3)
    assert PCIE[5].bytes_per_s == 2 * PCIE[4].bytes_per_s
    assert [link.bytes_per_s for link in NVLINK.values()] == [300e9, 450e9, 900e9]
    assert EDR.bytes_per_s == 12.5e9


def test_a_layer_is_synchronised_twice() -> None:
    group = by_degree(table("gpt3-39b", "a40", 16))[8]
    num_bytes = 1000 * 8192 * 2
    once = 14 * 5.7e-6 + 14 / 8 * num_bytes / (PCIE[4].bytes_per_s * 0.8)
    assert group.sync(1000) == pytest.approx(2 * once)


def test_a_t5_decoder_layer_has_a_third_all_reduce() -> None:
    made = table("t5-11b", "a40", 8)
    tokens = by_degree(made)[8].layer.tokens
    slow = cluster_of("a40", 8)
    slow = replace(slow, inside=replace(slow.inside, latency_s=slow.inside.latency_s + 1.0))
    slower = by_degree(analytic_table(builtin_model("t5-11b"), slow, "float16"))[8]
    assert slower.layer.tokens(0) - tokens(0) == pytest.approx(14.0)
    assert slower.sync(0) == pytest.approx(28.0, rel=1e-4)
    encoder_layer = by_degree(made)[8].encoder_layer
    assert encoder_layer is not None
    assert slower.encoder_layer is not None
    assert slower.encoder_layer.tokens == encoder_layer.tokens


def test_a_stage_in_another_node_is_further_away() -> None:
    one, two = table("gpt3-39b", "a40", 8), table("gpt3-39b", "a40", 16)
    assert one.parallel is not None
    assert two.parallel is not None
    assert two.parallel.node_devices == one.parallel.node_devices == 8
    assert two.parallel.degrees == one.parallel.degrees
    assert two.parallel.send_inside == one.parallel.send_inside
    between = 9.6e-6 + 1000 * 8192 * 2 / (12.5e9 * 0.8)
    assert two.parallel.send_between(1000) == pytest.approx(between)
    assert two.parallel.send_inside(1000) < between
    assert one.hand_over is not None
    assert two.hand_over is not None
    assert two.hand_over.exposed(1000) > one.hand_over.exposed(1000)
    assert two.hand_over.sent == one.hand_over.sent


def test_kv_shows_only_where_the_bus_is_slower_than_the_encode() -> None:
    """OPT 13B on A40: a token's KV takes 33 us on the bus and 0.28 ms to make; only the last layer's way shows."""
    made = table("opt-13b", "a40", 4)
    assert made.hand_over is not None
    hop = 819_200 / (PCIE[4].bytes_per_s * 0.8)
    assert made.hand_over.exposed(1000) == pytest.approx(2 * 5.7e-6 + 1000 * 2 * hop / 40)
    cluster = cluster_of("a40", 4)
    fast = replace(cluster.device, tensor_flops_per_s=300 * cluster.device.tensor_flops_per_s)
    bus = analytic_table(builtin_model("opt-13b"), replace(cluster, device=fast), "float16")
    encode = 2 * 40 * (12 * 5120**2 + 13 * 5120) / (300 * 149.7e12 * 0.6)
    assert bus.hand_over is not None
    way = 2 * 5.7e-6 + 1000 * (2 * hop / 40 + hop - encode)
    assert bus.hand_over.exposed(1000) == pytest.approx(way)


def test_a_t5s_layers_are_of_either_side_only() -> None:
    made, model = table("t5-11b", "a100-80", 1), builtin_model("t5-11b")
    assert isinstance(model, T5Spec)
    assert made.encoder is not None
    assert made.num_layers == made.encoder.num_layers == 24
    assert made.layer.encode_chunks(100) == made.layer.encode_pairs(1e6) == 0
    assert made.encoder.layer.decode_queries(100) == made.encoder.layer.decode_context(1e6) == 0
    # Both ways: twice the pairs of a causal prompt.
    pairs_s = 1e6 * 2 * 4 * 128 * 128 / (312e12 * 0.5)
    assert made.encoder.layer.encode_pairs(1e6) == pytest.approx(pairs_s)
    # Projections to cross-attention's KV are counted with the encoder.
    read_s = [each.tokens(0) for each in (made.layer, made.encoder.layer)]
    parameters = (
        model.layer_parameters - model.cross_kv_parameters,
        model.encoder_layer_parameters + model.cross_kv_parameters,
    )
    for seconds, count, kernels in zip(read_s, parameters, (12, 8), strict=True):
        assert seconds == pytest.approx(kernels * 2e-6 + count * 2 / (2.039e12 * 0.8))


def decode_s(one: ProfileTable, queries: float) -> float:
    return one.step_s(
        StepShape(
            tokens=queries,
            decode_queries=queries,
            decode_context=queries * CONTEXT,
            encode_chunks=0,
            encode_pairs=0,
            sampled=queries,
        )
    )


def encode_s(one: ProfileTable, queries: float) -> float:
    inputs = paper_task("S").input
    return one.step_s(
        StepShape(
            tokens=queries * inputs.mean,
            decode_queries=0,
            decode_context=0,
            encode_chunks=queries,
            encode_pairs=queries * (inputs.square + inputs.mean) / 2,
            sampled=queries,
        )
    )


@pytest.mark.parametrize(
    ("name", "decode_tolerance", "encode_tolerance"),
    [("datasheet", 0.04, 0.10), ("paper", 0.002, 0.002)],
)
def test_steps_of_opt_13b_on_four_a40_are_the_papers(
    name: str, decode_tolerance: float, encode_tolerance: float
) -> None:
    """Arxiv 2404.07947, Tables 6 and 7: 30.2 ms a query encoded, 13.0 ms + 0.189 ms n an iteration of n queries."""
    one = as_one(table("opt-13b", "a40", 4, calibration("a40", name)), 4)
    for pool in (128, 224):
        assert decode_s(one, pool) == pytest.approx(13.0e-3 + 0.189e-3 * pool, rel=decode_tolerance)
    for batch in (49, 52):
        assert encode_s(one, batch) == pytest.approx(30.2e-3 * batch, rel=encode_tolerance)


def rra(name: str, encode_batch: int, encode_interval: int) -> Prediction:
    one = as_one(table("opt-13b", "a40", 4, calibration("a40", name)), 4)
    schedule = RraSchedule(encode_batch=encode_batch, encode_interval=encode_interval)
    return simulate(schedule, one, paper_task("S"))


@pytest.mark.parametrize(("name", "tolerance"), [("datasheet", 0.08), ("paper", 0.015)])
@pytest.mark.parametrize(
    ("encode_batch", "encode_interval", "queries_per_s", "latency_s"),
    [(52, 13, 25.23, 10.23), (49, 7, 26.15, 16.87)],
)
def test_the_papers_two_rra_schedules_do_as_printed(
    name: str,
    tolerance: float,
    encode_batch: int,
    encode_interval: int,
    queries_per_s: float,
    latency_s: float,
) -> None:
    """Arxiv 2404.07947, Table 6, through the simulator: pool law, prompts' spread and all."""
    prediction = rra(name, encode_batch, encode_interval)
    assert prediction.queries_per_s == pytest.approx(queries_per_s, rel=tolerance)
    assert prediction.latency_mean_s == pytest.approx(latency_s, rel=tolerance)


def test_a_faster_device_is_nowhere_slower() -> None:
    slow, fast = table("llama-3.1-8b", "h100", 8), table("llama-3.1-8b", "h200", 8)
    rng = np.random.default_rng(0)
    for exponents in rng.uniform(0, 4, size=(50, 6)):
        names = [field.name for field in fields(StepShape)]
        shape = StepShape(**dict(zip(names, 10**exponents, strict=True)))
        assert fast.step_s(shape) <= slow.step_s(shape)


def test_the_documented_devices_are_these() -> None:
    page = (Path(__file__).parents[2] / "docs" / "hardware.md").read_text(encoding="utf-8")
    for each in DEVICES.values():
        flops, memory = each.tensor_flops_per_s / 1e12, each.memory_bytes / 1e9
        figures = f"{flops:g} | {memory:g} | {each.memory_bytes_per_s / 1e9:g} | {each.pcie}"
        assert f"| `{each.name}` | {figures} | {each.nvlink or '–'} | {each.source} |" in page


def test_float32_has_no_published_rate() -> None:
    with pytest.raises(InvalidSpec, match="float16 and bfloat16, not 'float32'"):
        analytic_table(builtin_model("opt-13b"), cluster_of("a40", 4), "float32")


def test_unknown_names_are_told_the_known_ones() -> None:
    with pytest.raises(InvalidSpec, match=r"did you mean 'a100-80'\?.*a40, .*b200"):
        cluster_of("A100-80GB", 8)
    with pytest.raises(InvalidSpec, match="'paper' is not known; known: datasheet"):
        calibration("h100", "paper")


def test_a_cluster_is_whole_nodes() -> None:
    assert cluster_of("a40", 48).nodes == 6
    assert cluster_of("a40", 5).nodes == 1
    with pytest.raises(InvalidSpec, match="12 devices are no whole number of nodes of 8"):
        cluster_of("a40", 12)
    with pytest.raises(InvalidSpec, match=r"devices must be at least 1, not 0; node_devices .* 0"):
        cluster_of("a40", 0, node_devices=0)


def test_shares_beyond_a_peak_are_refused_all_at_once() -> None:
    with pytest.raises(InvalidSpec, match=r"gemm must lie in .* 1\.2; link must lie in .* 0"):
        Efficiencies(name="test", gemm=1.2, attention=0.5, memory=0.8, link=0.0)
    with pytest.raises(InvalidSpec, match="bytes_per_s must be positive, not nan; latency_s"):
        Link(name="test", bytes_per_s=float("nan"), latency_s=-1.0, source="test")
