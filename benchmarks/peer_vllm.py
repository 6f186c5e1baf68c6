"""Runs inside vLLM's own environment: encode and decode speed of a Hugging Face folder at given
batch sizes, as JSON.

    python peer_vllm.py FOLDER --batches 1,8,32 --prompt 128 --steps 32

A decode step is the difference between generating many tokens and one, divided by the steps between
them; the engine's own scheduler runs both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import time


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("model")
    options.add_argument("--batches", default="1,8,32")
    options.add_argument("--prompt", type=int, default=128)
    options.add_argument("--steps", type=int, default=32)
    given = options.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        results, version = _measure(given)
    print(json.dumps({"engine": "vLLM (CPU)", "version": version, "batches": results}))


def _measure(given: argparse.Namespace) -> tuple[dict, str]:
    import vllm

    batches = [int(part) for part in given.batches.split(",")]
    engine = vllm.LLM(
        given.model,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        max_model_len=given.prompt + given.steps + 16,
        max_num_seqs=max(batches),
        max_num_batched_tokens=max(batches) * given.prompt,
        enable_prefix_caching=False,
    )
    draw = random.Random(0)

    def run(batch: int, tokens: int) -> float:
        prompts = [
            {"prompt_token_ids": [draw.randrange(1000, 5000) for _ in range(given.prompt)]}
            for _ in range(batch)
        ]
        sampling = vllm.SamplingParams(
            temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        begun = time.perf_counter()
        engine.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - begun

    results = {}
    for batch in batches:
        run(batch, 4)  # warm-up
        firsts = sorted(run(batch, 1) for _ in range(3))
        fulls = sorted(run(batch, 1 + given.steps) for _ in range(3))
        results[str(batch)] = {
            "decode_s": (fulls[1] - firsts[1]) / given.steps,
            "encode_s": firsts[1],
            "encode_tokens": batch * given.prompt,
        }
    return results, vllm.__version__


if __name__ == "__main__":
    main()
