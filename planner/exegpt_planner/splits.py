"""The paper's two splits of workers between encode and decode, by name, for a schedule's knobs.

WAA-C divides W in proportion to what a query's encode and decode compute; WAA-M evens out the KV that a worker holds
(the weights are on both sides alike). The search looks at every split, so these only say where its answer lies.
"""

from __future__ import annotations

from exegpt_planner.schedule import Split
from exegpt_planner.simulator.waa import WaaModel


def named_splits(model: WaaModel, batch: int, pool: int) -> dict[str, Split]:
    """WAA-C and WAA-M for `model`'s number of workers, at these knobs of its own split."""
    workers = sum(model.split)
    return {
        "WAA-C": _by_compute(model, batch, pool, workers),
        "WAA-M": _by_memory(model, batch, pool, workers),
    }


def _by_compute(model: WaaModel, batch: int, pool: int, workers: int) -> Split:
    encode_s, decode_s = model.query_costs_s(batch, pool)
    encoders = round(workers * encode_s / (encode_s + decode_s))
    encoders = min(max(encoders, 1), workers - 1)
    return encoders, workers - encoders


def _by_memory(model: WaaModel, batch: int, pool: int, workers: int) -> Split:
    batch_tokens = batch * model.prompts.tokens
    pools_tokens = model.split[1] * model.kv_tokens(batch, pool)
    encoders = min(
        range(1, workers), key=lambda x: abs(pools_tokens / (workers - x) - batch_tokens)
    )
    return encoders, workers - encoders
