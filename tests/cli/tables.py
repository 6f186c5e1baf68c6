"""Profile tables and a prediction, made up, and put where a measured one would be."""

from __future__ import annotations

from pathlib import Path

from exegpt_cli.cache import Cache
from exegpt_cli.placement import this_machine
from exegpt_cli.profiling import keep_table, local_key
from exegpt_gateway.metrics import Promise
from exegpt_planner.model_spec import read_model_spec
from exegpt_planner.profile_design import Coverage
from exegpt_planner.profile_table import (
    Curve,
    HandOverCurves,
    LayerCurves,
    OutsideCurves,
    ProfileKey,
    ProfileTable,
)
from exegpt_planner.schedule import Prediction

KEY = ProfileKey(model_fingerprint="x", device="cpu: test", dtype="float32", threads=1, versions={})
LARGE = Coverage(
    decode_queries=1024, context=512, encode_tokens=16384, encode_chunks=512, kv_tokens=1 << 17
)

PREDICTION = Prediction(
    queries_per_s=4,
    tokens_per_s=80,
    cycle_s=1,
    encode_share=0.25,
    first_token_s=0.25,
    latency_mean_s=1.5,
    latency_sd_s=0.1,
    latency_p99_s=1.75,
    promised_s=1.8,
    pool_mean=6,
    pool_sd=2,
    kv_tokens=1000,
    kv_tokens_reserved=1500,
)


def line(reach: float, start_s: float, slope_s: float) -> Curve:
    return Curve(x=(0.0, 1.0, reach), seconds=(0.0, start_s, start_s + slope_s * (reach - 1)))


def table_up_to(coverage: Coverage, key: ProfileKey = KEY, num_layers: int = 4) -> ProfileTable:
    """Times that grow with everything, known up to `coverage`."""
    reach = coverage.largest
    return ProfileTable(
        source="measured",
        key=key,
        num_layers=num_layers,
        layer=LayerCurves(
            tokens=line(reach.tokens, 5e-4, 1e-5),
            decode_queries=line(reach.decode_queries, 1e-5, 1e-5),
            decode_context=line(reach.decode_context, 1e-8, 1e-8),
            encode_chunks=line(reach.encode_chunks, 1e-5, 1e-5),
            encode_pairs=line(reach.encode_pairs, 1e-9, 1e-9),
        ),
        outside=OutsideCurves(
            tokens=line(reach.tokens, 1e-6, 1e-6), sampled=line(reach.sampled, 1e-4, 1e-5)
        ),
        step_overhead_s=1e-4,
        dispatch_s=1e-4,
        error_p95=0.05,
        kernel_s=0.006,
        num_samples=100,
        spread=0.01,
    )


def store_table(cache: Cache, model: Path, dtype: str, num_workers: int = 1) -> None:
    """Spares the tests that are not about profiling the time of one."""
    spec = read_model_spec(model)
    key = local_key(spec, dtype, this_machine(num_workers).threads, num_workers)
    table = table_up_to(LARGE, key, spec.num_layers)
    if num_workers > 1:
        curve = line(LARGE.encode_tokens, 1e-4, 1e-7)
        hand_over = HandOverCurves(sent=curve, joined=curve, exposed=curve)
        table = table.model_copy(update={"hand_over": hand_over})
    keep_table(table, cache)


def promise(bound_s: float = 2.0) -> Promise:
    # Predicted: 0.1 s a token; s99 is 20 tokens. Longer answers were not predicted.
    return Promise(
        bound_s=bound_s,
        prediction=PREDICTION,
        table=table_up_to(LARGE),
        normalise=lambda length: 20 / length if length <= 20 else None,
    )
