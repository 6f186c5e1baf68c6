"""Mixed lengths cost the sum of their tokens and contexts: steps of equal and mixed lengths, timed.

    python benchmarks/ragged.py [--rounds 7]

Beside it, attention as padding would have it: one masked call over batch x longest. One thread,
process CPU time, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from bench_worker import model_folder
from exegpt_cli.cache import Cache
from exegpt_planner.model_spec import read_model_spec
from exegpt_runner.engine import EncodeChunk, Engine, Sampling
from exegpt_runner.layers.attention import Attention
from exegpt_runner.layers.batch import Batch
from exegpt_runner.models.llama import LlamaModel, load

EQUAL = [256] * 16
MIXED = [32] * 8 + [64] * 4 + [256] * 2 + [1536, 1536]  # the same sum, six times as long at most
PROMPTS_EQUAL = [64] * 8
PROMPTS_MIXED = [8, 8, 16, 16, 32, 32, 80, 320]


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=7)
    rounds = options.parse_args().rounds
    torch.set_num_threads(1)
    folder = model_folder("demo", Cache.of_user())
    model = load(folder, read_model_spec(folder), torch.bfloat16)
    cases = {
        f"decode step, 16 equal contexts (sum {sum(EQUAL)})": decode(model, EQUAL),
        f"decode step, 16 mixed contexts (sum {sum(MIXED)})": decode(model, MIXED),
        f"encode step, 8 equal prompts (sum {sum(PROMPTS_EQUAL)})": encode(model, PROMPTS_EQUAL),
        f"encode step, 8 mixed prompts (sum {sum(PROMPTS_MIXED)})": encode(model, PROMPTS_MIXED),
        "attention of one layer, mixed, per sequence": per_sequence(model, MIXED),
        "attention of one layer, mixed, padded and masked": padded(model, MIXED),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, step in cases.items():
            times[name].append(seconds(step))
    medians = {name: statistics.median(found) for name, found in times.items()}
    for (base, base_s), (name, name_s) in zip(*[iter(medians.items())] * 2, strict=True):
        print(f"{base:<52}{1e3 * base_s:8.2f} ms")
        print(f"{name:<52}{1e3 * name_s:8.2f} ms   ratio {name_s / base_s:.2f}")


def seconds(step: Callable[[], object]) -> float:
    step()
    begun = time.process_time()
    for _ in range(3):
        step()
    return (time.process_time() - begun) / 3


def decode(model: LlamaModel, contexts: Sequence[int]) -> Callable[[], object]:
    engine = Engine(model, sum(contexts) + 1024 * len(contexts))
    engine.fabricate(list(contexts))
    return lambda: engine.iterate([], decode=True)


def encode(model: LlamaModel, lengths: Sequence[int]) -> Callable[[], object]:
    engine = Engine(model, sum(lengths) + 64 * len(lengths))
    rng = np.random.default_rng(0)
    chunks = [
        EncodeChunk(
            query=query,
            tokens=rng.integers(0, model.spec.vocab, length),
            sampling=Sampling(max_tokens=1),
        )
        for query, length in enumerate(lengths)
    ]
    return lambda: engine.iterate(chunks, decode=False)


def per_sequence(model: LlamaModel, contexts: Sequence[int]) -> Callable[[], object]:
    spec = model.spec
    kv = torch.randn(2, spec.num_kv_heads, sum(contexts), spec.head_dim).to(torch.bfloat16)
    num_heads = spec.num_heads + 2 * spec.num_kv_heads
    qkv = torch.randn(len(contexts), num_heads, spec.head_dim).to(torch.bfloat16)
    last = torch.from_numpy(np.cumsum(contexts) - 1)
    batch = Batch(
        tokens=last,
        positions=torch.tensor(contexts) - 1,
        slots=last,
        kv_starts=np.cumsum(contexts) - np.array(contexts),
        contexts=np.array(contexts),
    )
    attention = Attention(model.heads, batch, torch.bfloat16)
    return inference(lambda: attention(qkv, kv))


def padded(model: LlamaModel, contexts: Sequence[int]) -> Callable[[], object]:
    spec = model.spec
    size = (len(contexts), spec.num_kv_heads, max(contexts), spec.head_dim)
    keys, values = (torch.randn(size).to(torch.bfloat16) for _ in range(2))
    query = torch.randn(len(contexts), spec.num_heads, 1, spec.head_dim).to(torch.bfloat16)
    within = torch.arange(max(contexts)) < torch.tensor(contexts)[:, None]
    mask = within[:, None, None, :]
    return inference(
        lambda: scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
    )


def inference(step: Callable[[], object]) -> Callable[[], object]:
    @torch.inference_mode()
    def run() -> object:
        return step()

    return run


if __name__ == "__main__":
    main()
