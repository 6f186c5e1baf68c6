"""The paper's two splits of devices between encode and decode, by name, for a schedule's knobs.

WAA-C divides them in proportion to what a query's encode and decode take of a device; WAA-M evens out the KV that a
device holds (the weights are on both sides alike). The search looks at every split, so these only say where its answer
lies. Where instances are of several devices a named split need not be a whole number of them.
"""

from __future__ import annotations

from exegpt_planner.schedule import Split
from exegpt_planner.simulator.waa import WaaModel


def devices_of(model: WaaModel) -> Split:
    """Devices that encode, and that decode."""
    (encoders, decoders), (each_encoder, each_decoder) = model.split, model.instances.devices
    return encoders * each_encoder, decoders * each_decoder


def named_splits(model: WaaModel, batch: int, pool: int) -> dict[str, Split]:
    """WAA-C and WAA-M of all devices, at these knobs of the model's own split."""
    devices = sum(devices_of(model))
    return {
        "WAA-C": _by_compute(model, batch, pool, devices),
        "WAA-M": _by_memory(model, batch, pool, devices),
    }


def _by_compute(model: WaaModel, batch: int, pool: int, devices: int) -> Split:
    times_s = zip(model.query_costs_s(batch, pool), model.instances.devices, strict=True)
    encode_s, decode_s = (seconds * each for seconds, each in times_s)
    encoders = round(devices * encode_s / (encode_s + decode_s))
    encoders = min(max(encoders, 1), devices - 1)
    return encoders, devices - encoders


def _by_memory(model: WaaModel, batch: int, pool: int, devices: int) -> Split:
    batch_tokens = batch * model.prompts.tokens / model.instances.devices[0]
    pools_tokens = model.split[1] * model.kv_tokens(batch, pool)
    encoders = min(
        range(1, devices), key=lambda x: abs(pools_tokens / (devices - x) - batch_tokens)
    )
    return encoders, devices - encoders
