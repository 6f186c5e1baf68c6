"""Times the step engine beside transformers: decode at batch 1, 8, 32 and encode, in turns, on the
same weights.

Also the share of this machine's streaming-read bandwidth that decoding at batch 1 reaches over
weights + KV bytes.
Ratios carry over between machines and hours; seconds are printed to judge them by. With one thread
the clock is the
process's CPU time, which a busy neighbour disturbs least.
Run: python benchmarks/engine.py [--rounds 5] [--context 256] [--threads 1] [-o json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from exegpt_planner.model_spec import ModelSpec, read_model_spec
from exegpt_runner.engine import EncodeChunk, Engine, Sampling
from exegpt_runner.models.llama import LlamaModel, load

SMOLLM2_135M: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
}
ENCODE = (8, 128)  # prompts, tokens each
DTYPE = torch.bfloat16
STREAM_BYTES = 512 << 20  # well beyond any last-level cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case: seconds a step (median over rounds), and how many times faster the engine is."""

    case: str
    engine_s: float
    transformers_s: float

    @property
    def ratio(self) -> float:
        """transformers' time by the engine's."""
        return self.transformers_s / self.engine_s


def main() -> None:
    arguments = parse()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        reference = build_reference(Path(folder))
        model = load(Path(folder), read_model_spec(Path(folder)), DTYPE)
        rows, shares = compare(model, reference, arguments.rounds, arguments.context)
    share = statistics.median(shares)
    if arguments.output == "json":
        found = [asdict(row) | {"ratio": row.ratio} for row in rows]
        print(json.dumps({"rows": found, "bandwidth_share": share}, indent=2))
        return
    print(f"{'case':<24}{'engine ms':>12}{'transformers ms':>18}{'ratio':>8}")
    for row in rows:
        engine_ms, other_ms = row.engine_s * 1e3, row.transformers_s * 1e3
        print(f"{row.case:<24}{engine_ms:>12.1f}{other_ms:>18.1f}{row.ratio:>8.2f}")
    print(f"decode at batch 1 reads weights + KV at {share:.2f} of the streaming-read bandwidth")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--context", type=int, default=256, help="KV tokens of a decoding query")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser.parse_args()


def build_reference(folder: Path) -> Any:
    """A random model of SmolLM2-135M's shape in transformers, also saved to `folder`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    reference = LlamaForCausalLM(LlamaConfig(**SMOLLM2_135M))
    torch.nn.Module.to(reference, DTYPE)  # transformers' own override is mistyped
    reference.save_pretrained(folder)
    return reference


def compare(
    model: LlamaModel, reference: Any, rounds: int, context: int
) -> tuple[list[Row], list[float]]:
    """Each case timed in turns, and the bandwidth share of each round."""
    cases: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        f"decode, batch {batch}": (
            engine_decode(model, batch, context),
            reference_decode(reference, model.spec, batch, context),
        )
        for batch in (1, 8, 32)
    }
    cases[f"encode, {ENCODE[0]} x {ENCODE[1]}"] = (
        engine_encode(model),
        reference_encode(reference),
    )
    stream = torch.ones(STREAM_BYTES // 4)
    times: dict[str, tuple[list[float], list[float]]] = {case: ([], []) for case in cases}
    shares = []
    for _ in range(rounds):
        for case, pair in cases.items():
            for step, found in zip(pair, times[case], strict=True):
                found.append(median_s(step, 2 if case.startswith("encode") else 5))
        bandwidth = STREAM_BYTES / median_s(lambda: stream.sum(), 3)
        moved = model.spec.weight_bytes("bfloat16") + context * model.spec.kv_bytes_per_token(
            "bfloat16"
        )
        shares.append(moved / times["decode, batch 1"][0][-1] / bandwidth)
    return [
        Row(case=case, engine_s=statistics.median(ours), transformers_s=statistics.median(theirs))
        for case, (ours, theirs) in times.items()
    ], shares


def median_s(step: Callable[[], object], repeats: int) -> float:
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    step()
    found = []
    for _ in range(repeats):
        start = clock()
        step()
        found.append(clock() - start)
    return statistics.median(found)


def engine_decode(model: LlamaModel, batch: int, context: int) -> Callable[[], None]:
    engine = Engine(model, batch * (context + 1024))
    engine.fabricate([context] * batch)
    return lambda: void(engine.iterate([], decode=True))


def engine_encode(model: LlamaModel) -> Callable[[], None]:
    prompts, length = ENCODE
    engine = Engine(model, prompts * (length + 64))
    tokens = np.random.default_rng(0).integers(0, model.spec.vocab, (prompts, length))
    chunks = [
        EncodeChunk(query=query, tokens=tokens[query], sampling=Sampling(max_tokens=1))
        for query in range(prompts)
    ]
    return lambda: void(engine.iterate(chunks, decode=False))


def reference_decode(
    reference: Any, spec: ModelSpec, batch: int, context: int
) -> Callable[[], None]:
    from transformers import DynamicCache

    cache = DynamicCache(config=reference.config)
    size = (batch, spec.num_kv_heads, context, spec.head_dim)
    for layer in range(spec.num_layers):
        cache.update(torch.randn(size).to(DTYPE) * 0.02, torch.randn(size).to(DTYPE) * 0.02, layer)
    tokens = torch.zeros(batch, 1, dtype=torch.long)

    @torch.inference_mode()
    def step() -> None:
        nonlocal tokens
        logits = reference(tokens, cache=cache, use_cache=True).logits
        tokens = logits[:, -1:].argmax(-1)

    return step


def reference_encode(reference: Any) -> Callable[[], None]:
    tokens = torch.randint(0, reference.config.vocab_size, ENCODE)

    @torch.inference_mode()
    def step() -> None:
        reference(tokens, use_cache=True, logits_to_keep=1).logits.argmax(-1)

    return step


def void(_: object) -> None:
    """Drops a result."""


if __name__ == "__main__":
    main()
