"""A profile table from published figures, so that a laptop can plan for any cluster.

Tensor-parallel degrees are the powers of two that fit in a node and divide the heads and the KV heads. KV heads are
never replicated: then a device's KV is exactly a degree-th of the model's in every part of the planner.

Handed over, KV goes from the encoder's device to its host's memory, from there (between nodes: over the network) to
the decoder's host and device, layer by layer while later layers compute. Copy engines do it beside the kernels, so
either side loses no more than the memory traffic and the start of a copy a layer. What shows after the encode's end is
the last layer's way, hop by hop, and by how much the slowest hop is slower than the encode.

The table says nothing of its own error: `error_p95` is 0 because nothing was measured to compare with, and `source` is
"analytic" wherever the table goes.
"""

from __future__ import annotations

from exegpt_planner.hardware.calibrations import DATASHEET, Efficiencies
from exegpt_planner.hardware.clusters import Cluster
from exegpt_planner.hardware.layer_times import KERNEL_S, MOST_TOKENS, GroupTimes
from exegpt_planner.hardware.links import Link, host_link
from exegpt_planner.hardware.rooflines import Rates, line
from exegpt_planner.model_spec import ModelSpec, T5Spec
from exegpt_planner.profile_table import (
    Curve,
    DegreeCurves,
    EncoderCurves,
    HandOverCurves,
    ParallelCurves,
    ProfileKey,
    ProfileTable,
)

LEAST_CONTEXT_END = 1e8  # KV tokens; curves end here, or where the cluster's whole memory does
STEP_OVERHEAD_S = 50e-6  # assumed: bookkeeping of a step in the worker
DISPATCH_S = 100e-6  # assumed: a message between conductor and worker
NO_KERNEL_S = (
    1.0  # no calibration kernel was run; what measures against it must not meet this table
)


def analytic_table(
    model: ModelSpec, cluster: Cluster, dtype: str, *, efficiencies: Efficiencies = DATASHEET
) -> ProfileTable:
    """The step times of a model on a cluster's devices, from their published figures."""
    rates = Rates.of(cluster.device, efficiencies, dtype)
    kv_bytes = model.kv_bytes_per_token(dtype)
    inside, between = (link.at(efficiencies.link) for link in (cluster.inside, cluster.between))

    def group(degree: int) -> GroupTimes:
        return GroupTimes(
            model=model,
            rates=rates,
            link=inside,
            degree=degree,
            context_end=max(LEAST_CONTEXT_END, cluster.memory_bytes / kv_bytes),
        )

    one = group(1)
    node_devices = min(cluster.node_devices, cluster.devices)
    row_bytes = model.hidden * rates.number_bytes
    parallel = ParallelCurves(
        node_devices=node_devices,
        degrees=tuple(_degree(group(each)) for each in degrees(model, node_devices)),
        send_inside=_send(inside, row_bytes),
        send_between=_send(between, row_bytes),
    )
    hops = [host_link(cluster.device).at(efficiencies.link)] * 2
    hops += [between] * (cluster.nodes > 1)
    return ProfileTable(
        source="analytic",
        key=ProfileKey(
            model_fingerprint=model.fingerprint,
            device=f"analytic: {cluster.device.name}, {efficiencies.name}",
            dtype=dtype,
            threads=1,
            versions={},
        ),
        num_layers=model.num_layers,
        layer=one.decoder_layer(),
        outside=one.outside(),
        step_overhead_s=STEP_OVERHEAD_S,
        dispatch_s=DISPATCH_S,
        error_p95=0.0,
        kernel_s=NO_KERNEL_S,
        num_samples=0,
        spread=0.0,
        hand_over=_hand_over(model, rates, kv_bytes, hops) if cluster.devices > 1 else None,
        parallel=parallel if cluster.devices > 1 else None,
        encoder=_encoder(one),
    )


def degrees(model: ModelSpec, node_devices: int) -> list[int]:
    """Tensor-parallel degrees from 2 on: powers of two, within a node, that divide heads and KV heads."""
    powers = [2**i for i in range(1, node_devices.bit_length()) if 2**i <= node_devices]
    return [d for d in powers if not model.num_heads % d and not model.num_kv_heads % d]


def _degree(group: GroupTimes) -> DegreeCurves:
    model = group.model
    return DegreeCurves(
        degree=group.degree,
        layer=group.decoder_layer(),
        outside=group.outside(),
        sync=group.sync(),
        encoder_layer=group.encoder_layer(model) if isinstance(model, T5Spec) else None,
    )


def _encoder(group: GroupTimes) -> EncoderCurves | None:
    model = group.model
    if not isinstance(model, T5Spec):
        return None
    return EncoderCurves(num_layers=model.num_encoder_layers, layer=group.encoder_layer(model))


def _send(link: Link, row_bytes: int) -> Curve:
    cost = link.send(row_bytes)
    return line(cost.unit_s, MOST_TOKENS, at_zero=cost.fixed_s)


def _hand_over(model: ModelSpec, rates: Rates, kv_bytes: int, hops: list[Link]) -> HandOverCurves:
    """By KV tokens; `hops` are the links on the way.

    An encoder-decoder model's KV is made of the encoder's output: only its own making, layer by layer, hides the way.
    """
    ways = [hop.send(kv_bytes) for hop in hops]
    last_layer_s = sum(way.unit_s for way in ways) / model.num_layers
    layers = (
        model.num_layers * model.cross_kv_parameters
        if isinstance(model, T5Spec)
        else model.num_layers * model.layer_parameters
    )
    encode_s = 2 * layers / rates.gemm_flops_per_s
    late_s = max(0.0, max(way.unit_s for way in ways) - encode_s)
    copies = line(kv_bytes / rates.bytes_per_s, MOST_TOKENS, at_zero=model.num_layers * KERNEL_S)
    return HandOverCurves(
        sent=copies,
        joined=copies,
        exposed=line(last_layer_s + late_s, MOST_TOKENS, at_zero=sum(way.fixed_s for way in ways)),
    )
