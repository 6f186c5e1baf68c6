"""A small model, tables and workloads for planner tests: an affine machine, but for what a test names."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.lengths import LengthLaw
from exegpt_planner.model_spec import LlamaSpec
from exegpt_planner.profile_table import (
    Curve,
    DegreeCurves,
    HandOverCurves,
    LayerCurves,
    OutsideCurves,
    ParallelCurves,
    ProfileKey,
    ProfileTable,
)
from exegpt_planner.workload import Workload

Floats = NDArray[np.float64]
MODEL = LlamaSpec(
    architecture="llama",
    num_layers=4,
    hidden=64,
    ffn=128,
    num_heads=4,
    num_kv_heads=4,
    head_dim=16,
    vocab=256,
    context=512,
    rope_theta=1e4,
    norm_eps=1e-5,
    tied_embeddings=True,
)


def bell(mean: float, sd: float, longest: int) -> LengthLaw:
    """A discretised normal law on 1..longest."""
    k = np.arange(longest + 1)
    pmf = np.exp(-0.5 * ((k - mean) / sd) ** 2)
    pmf[0] = 0.0
    return LengthLaw(pmf=pmf / pmf.sum())


def point(length: int) -> LengthLaw:
    pmf = np.zeros(length + 1)
    pmf[length] = 1.0
    return LengthLaw(pmf=pmf)


def independent(inputs: LengthLaw, outputs: LengthLaw) -> Workload:
    k = np.arange(len(inputs.pmf))
    ones = np.ones(len(outputs.pmf))
    return Workload(
        input=inputs,
        output=outputs,
        input_mean=ones * float(inputs.pmf @ k),
        input_square=ones * float(inputs.pmf @ k**2),
        source="test",
    )


def correlated(outputs: LengthLaw, *, factor: float = 1.5, spread: int = 6) -> Workload:
    """A workload whose inputs are round(factor L) + U, U uniform on 1..2 spread + 1."""
    k = np.arange(len(outputs.pmf))
    base = np.round(factor * k).astype(int)
    width = 2 * spread + 1
    pmf = np.zeros(base[-1] + width + 1)
    for length, chance in enumerate(outputs.pmf):
        pmf[base[length] + 1 : base[length] + width + 1] += chance / width
    u = np.arange(1, width + 1)
    mean = base + u.mean()
    square = base**2 + 2 * base * u.mean() + (u**2).mean()
    return Workload(
        input=LengthLaw(pmf=pmf),
        output=outputs,
        input_mean=mean.astype(np.float64),
        input_square=square.astype(np.float64),
        source="test",
    )


def line(fixed_s: float, each_s: float, limit: float) -> Curve:
    return Curve(x=(0.0, limit), seconds=(fixed_s, fixed_s + each_s * limit))


def table(
    *,
    tokens: Curve | None = None,
    queries: Curve | None = None,
    context: Curve | None = None,
    sampled: Curve | None = None,
    overhead_s: float = 2e-4,
    dispatch_s: float = 3e-4,
    error: float = 0.03,
) -> ProfileTable:
    """An affine machine of 4 layers unless curves are given."""
    return ProfileTable(
        source="measured",
        key=ProfileKey(
            model_fingerprint="test", device="cpu: test", dtype="float32", threads=1, versions={}
        ),
        num_layers=4,
        layer=LayerCurves(
            tokens=tokens or line(4e-4, 8e-6, 8192),
            decode_queries=queries or line(0.0, 1.5e-5, 512),
            decode_context=context or line(0.0, 4e-8, 200_000),
            encode_chunks=line(0.0, 2e-5, 256),
            encode_pairs=line(0.0, 2e-9, 4_000_000),
        ),
        outside=OutsideCurves(
            tokens=line(0.0, 1e-7, 8192), sampled=sampled or line(0.0, 2e-5, 512)
        ),
        step_overhead_s=overhead_s,
        dispatch_s=dispatch_s,
        error_p95=error,
        kernel_s=6e-3,
        num_samples=100,
        spread=0.01,
        hand_over=HandOverCurves(
            sent=line(1e-4, 4e-7, 8192),
            joined=line(1e-4, 3e-7, 8192),
            exposed=line(3e-4, 1e-6, 8192),
        ),
    )


def summarization_like() -> Workload:
    return independent(bell(32, 17, 64), bell(16, 6, 40))


def rough_curve(rng: np.random.Generator, *, limit: float, top_s: float, kind: str) -> Curve:
    """A curve of one kind: affine, tiles (steps), saw (falls after each rise), or noise around a line."""
    knots = np.unique(np.round(np.linspace(0, limit, int(rng.integers(4, 9)))))
    base = top_s * (rng.uniform(0.05, 0.5) + knots / limit)
    match kind:
        case "affine":
            x, y = np.array([0.0, limit]), np.array([base[0], base[-1]])
        case "tiles":
            edges = knots[1:-1]
            x = np.sort(np.concatenate([knots, np.minimum(edges + 1e-3, limit)]))
            y = base[np.searchsorted(knots, x, side="left")]
        case "saw":
            x = np.sort(np.concatenate([knots, (knots[1:] + knots[:-1]) / 2]))
            y = np.interp(x, knots, base)
            y[1::2] *= rng.uniform(1.1, 1.8)
        case _:
            x, y = knots, base * rng.uniform(0.6, 1.6, len(knots))
    return Curve(x=tuple(x.tolist()), seconds=tuple(y.tolist()))


KINDS = ("affine", "tiles", "saw", "noise")


def rough_table(rng: np.random.Generator, *, reach: int = 12, context: float = 900) -> ProfileTable:
    """A random machine: each curve of a random kind, over a range small enough to search exhaustively."""

    def curve(limit: float, top_s: float) -> Curve:
        kind = KINDS[int(rng.integers(len(KINDS)))] if rng.random() < 0.6 else "affine"
        return rough_curve(rng, limit=limit, top_s=top_s * rng.uniform(0.2, 2), kind=kind)

    plain = table(overhead_s=float(rng.uniform(0, 1e-3)), dispatch_s=float(rng.uniform(0, 1e-3)))
    return plain.model_copy(
        update={
            "num_layers": 2,
            "layer": _rough_layer(curve, reach=reach, context=context),
            "outside": OutsideCurves(
                tokens=curve(reach * 40.0, 1e-4), sampled=curve(reach * 4.0, 1e-3)
            ),
            "hand_over": HandOverCurves(
                sent=curve(reach * 40.0, 1e-3),
                joined=curve(reach * 40.0, 1e-3),
                exposed=curve(reach * 40.0, 2e-3),
            ),
        }
    )


def rough_parallel(
    table: ProfileTable, rng: np.random.Generator, *, reach: int = 12, context: float = 900
) -> ProfileTable:
    """The machine several times over: groups of two, and sends between stages."""

    def curve(limit: float, top_s: float) -> Curve:
        kind = KINDS[int(rng.integers(len(KINDS)))] if rng.random() < 0.4 else "affine"
        return rough_curve(rng, limit=limit, top_s=top_s * rng.uniform(0.1, 1), kind=kind)

    pair = DegreeCurves(
        degree=2,
        layer=_rough_layer(curve, reach=reach, context=context),
        outside=OutsideCurves(tokens=curve(reach * 40.0, 1e-4), sampled=curve(reach * 4.0, 1e-3)),
        sync=curve(reach * 40.0, 3e-4),
    )
    parallel = ParallelCurves(
        node_devices=2,
        degrees=(pair,),
        send_inside=curve(reach * 40.0, 2e-4),
        send_between=curve(reach * 40.0, 1e-3),
    )
    return table.model_copy(update={"num_layers": int(rng.integers(4, 8)), "parallel": parallel})


def _rough_layer(
    curve: Callable[[float, float], Curve], *, reach: int, context: float
) -> LayerCurves:
    return LayerCurves(
        tokens=curve(reach * 40.0, 4e-3),
        decode_queries=curve(reach * 4.0, 1e-3),
        decode_context=curve(context, 1e-3),
        encode_chunks=curve(float(reach), 3e-4),
        encode_pairs=curve(reach * 600.0, 1e-3),
    )
