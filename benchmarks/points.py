"""The points every benchmark of schedules runs on: models, workloads shaped like the paper's tasks,
and bounds that bind.

The workloads are tasks S, T and G of the ExeGPT paper (Table 3) with lengths divided by 8, so that
a run takes minutes on one core. The inputs of S and T
are (256, 138, 512) and (128, 62, 256): the printed ones are no moments of a truncated normal
(docs/theory.md).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from exegpt_planner.completion import CompletionLaw
from exegpt_planner.errors import IncompleteProfile
from exegpt_planner.lengths import truncated_normal
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.search import fastest, search
from exegpt_planner.shapes import device_each
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.strategies import StrategySpace, sites_of
from exegpt_planner.workload import Workload

STRATEGIES = ("RRA", "CRA")  # on one worker


def strategies(num_workers: int) -> tuple[str, ...]:
    """What so many workers can run."""
    return (*STRATEGIES, "WAA") if num_workers > 1 else STRATEGIES


UNBOUNDED_S = 1e6
SCALE = 8
PROBE_SHARE = 0.2  # 0.8 law + 0.2 point mass at s99: s99 stays the 99th percentile
TASKS = {  # (mean, std, max) of input and output, tokens
    "S": ((256, 138, 512), (32, 13, 80)),
    "T": ((128, 62, 256), (128, 68, 320)),
    "G": ((64, 23, 128), (192, 93, 480)),
}
BOUND_SHARES = {
    "tight": 0.3,
    "loose": 0.7,
}  # of the way (geometric) from the fastest schedule to the unbounded one


def workload(task: str) -> Workload:
    """Task S, T or G at 1/8 of its lengths, with probes mixed in."""
    (law_in, law_out) = (
        truncated_normal(mean / SCALE, std / SCALE, longest // SCALE)
        for mean, std, longest in TASKS[task]
    )
    return Workload.independent(
        law_in, law_out, source=f"task {task} at 1/{SCALE} of its lengths"
    ).with_probes(PROBE_SHARE)


def spaces(
    name: str,
    table: ProfileTable,
    load: Workload,
    promise: Promise,
    kv_capacity: float,
    num_workers: int = 1,
) -> list[StrategySpace]:
    """The spaces of a strategy, one a split."""
    shape = device_each(table, num_workers, int(kv_capacity))
    return [site.space(promise) for site in sites_of(name, [shape], table, CompletionLaw(load))]


def reach(
    table: ProfileTable, load: Workload, kv_capacity: float, num_workers: int = 1
) -> tuple[float, float]:
    """(promise of the fastest schedule, that of the one with most throughput), s, that every strategy reaches."""
    promise = Promise.full(length=load.s99, error=table.error_p95)
    fastest_s, unbounded_s = [], []
    for name in strategies(num_workers):
        of_name = spaces(name, table, load, promise, kv_capacity, num_workers)
        quickest = [found for space in of_name if (found := fastest(space)) is not None]
        best = [
            found for space in of_name if (found := search(space, UNBOUNDED_S).best) is not None
        ]
        if not quickest or not best:
            raise IncompleteProfile(f"{name} has no schedule that the profile covers")
        fastest_s.append(min(each.promised_s for each in quickest))
        unbounded_s.append(max(best, key=lambda each: each.throughput).promised_s)
    return max(fastest_s), min(unbounded_s)


def between(fastest_s: float, unbounded_s: float, share: float) -> float:
    """The bound `share` of the way from `fastest_s` to `unbounded_s`, geometrically."""
    return fastest_s * (unbounded_s / fastest_s) ** share


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomLlama:
    """A Llama of random weights, small enough for minutes and large enough not to be all overhead."""

    layers: int = 4
    hidden: int = 768
    ffn: int = 2048
    heads: int = 12
    vocab: int = 8192
    context: int = 2048


def write_random_llama(folder: Path, shape: RandomLlama = RandomLlama()) -> Path:
    """A Hugging Face folder of that shape in bf16, made once; returns the folder."""
    if (folder / "model.safetensors").exists():
        return folder
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        values = torch.randn(rows, columns, generator=generator) / math.sqrt(columns)
        return values.to(torch.bfloat16)

    weights = {
        "model.embed_tokens.weight": matrix(shape.vocab, shape.hidden),
        "model.norm.weight": torch.ones(shape.hidden, dtype=torch.bfloat16),
        "lm_head.weight": matrix(shape.vocab, shape.hidden),
    }
    for layer in range(shape.layers):
        at = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{at}self_attn.{name}.weight"] = matrix(shape.hidden, shape.hidden)
        weights[f"{at}mlp.gate_proj.weight"] = matrix(shape.ffn, shape.hidden)
        weights[f"{at}mlp.up_proj.weight"] = matrix(shape.ffn, shape.hidden)
        weights[f"{at}mlp.down_proj.weight"] = matrix(shape.hidden, shape.ffn)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{at}{name}.weight"] = torch.ones(shape.hidden, dtype=torch.bfloat16)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": shape.hidden, "intermediate_size": shape.ffn, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.heads,
        "vocab_size": shape.vocab, "max_position_embeddings": shape.context, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def knobs(schedule: dict) -> str:
    """The numbers that were chosen, as in the tables: B_E/N_D, B_D/C, B_E/B_D."""
    left_out = ("strategy", "units", "encoders", "decoders", "adjustment")
    return "/".join(str(value) for name, value in schedule.items() if name not in left_out)
