"""The step engine beside llama.cpp and vLLM's CPU build: same bf16 weights, one thread, in turns.

    python benchmarks/engine_peers.py [--rounds 3] [--peers llamacpp,vllm] [-o json]

Each peer lives in its own environment (peers.py makes it: llama.cpp builds for ten minutes) and is
timed in its own process by wall clock; a round runs every engine once. vLLM's decode step includes
its scheduler, as it cannot be called without. Ratios are of medians over rounds; above 1 exegpt is
faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import peers
from bench_worker import model_folder
from exegpt_cli.cache import Cache
from write_gguf import write_gguf

HERE = Path(__file__).parent
BATCHES = (1, 8, 32)
PROMPT = 128
STEPS = 32
NAMES = {"exegpt": "exegpt", "llamacpp": "llama.cpp", "vllm": "vLLM (CPU)"}


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--peers", default="llamacpp,vllm")
    options.add_argument("-o", "--output", choices=("text", "json"), default="text")
    options.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
    given = options.parse_args()
    folder = model_folder("demo", Cache.of_user())
    if given.own:
        print(json.dumps({"batches": own(folder)}))
        return
    engines = ["exegpt", *given.peers.split(",")]
    commands = {name: command(name, folder) for name in engines}
    found: dict[str, list[dict]] = {name: [] for name in engines}
    for _ in range(given.rounds):
        for name, words in commands.items():
            found[name].append(timed(words))
    rows = [row for name in engines[1:] for row in compare(name, found["exegpt"], found[name])]
    if given.output == "json":
        print(json.dumps(rows, indent=1))
        return
    print(f"{'peer':<12}{'case':<22}{'exegpt tok/s':>14}{'peer tok/s':>12}{'ratio':>8}")
    for row in rows:
        print(
            f"{row['peer']:<12}{row['case']:<22}{row['exegpt']:>14.0f}{row['other']:>12.0f}{row['ratio']:>8.2f}"
        )


def command(name: str, folder: Path) -> list[str]:
    """What times one engine and prints JSON as its last line."""
    sizes = ["--batches", ",".join(map(str, BATCHES)), "--prompt", str(PROMPT)]
    match name:
        case "exegpt":
            return [sys.executable, str(HERE / "engine_peers.py"), "--own"]
        case "llamacpp":
            weights = write_gguf(folder, folder.parent / f"{folder.name}-bf16.gguf")
            python = peers.environment("llamacpp")
            return [
                str(python),
                str(HERE / "peer_llamacpp.py"),
                str(weights),
                *sizes,
                "--steps",
                str(STEPS),
            ]
        case "vllm":
            python = peers.environment("vllm")
            return [
                str(python),
                str(HERE / "peer_vllm.py"),
                str(folder),
                *sizes,
                "--steps",
                str(STEPS),
            ]
        case _:
            raise SystemExit(f"no peer is called {name!r}; there are llamacpp and vllm")


def timed(words: Sequence[str]) -> dict:
    """The batches that one process measured, on one core with one thread."""
    core = max(os.sched_getaffinity(0))
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": str(core),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "HF_HUB_OFFLINE": "1",
    }
    ran = subprocess.run(
        ["taskset", "-c", str(core), *words],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise SystemExit(f"{' '.join(words[:2])} failed:\n{ran.stderr[-2000:]}")
    return json.loads(ran.stdout.splitlines()[-1])["batches"]


def own(folder: Path) -> dict:
    """exegpt's step engine at the same batches."""
    import numpy as np
    import torch

    from exegpt_planner.model_spec import read_model_spec
    from exegpt_runner.engine import EncodeChunk, Engine, Sampling
    from exegpt_runner.models.llama import load

    torch.set_num_threads(1)
    model = load(folder, read_model_spec(folder), torch.bfloat16)
    model.warm_up()  # as a worker does, and as vLLM does at its start
    rng = np.random.default_rng(0)
    results = {}
    for batch in BATCHES:
        engine = Engine(model, batch * (PROMPT + STEPS + 128))
        tokens = rng.integers(1000, 5000, (batch, PROMPT))
        chunks = [
            EncodeChunk(
                query=index,
                tokens=tokens[index],
                sampling=Sampling(max_tokens=STEPS + 8, ignore_eos=True),
            )
            for index in range(batch)
        ]
        firsts = []
        for _ in range(4):  # the first warms up
            engine.reset()
            firsts.append(_seconds(partial(engine.iterate, chunks, decode=False)))
        encode_s = statistics.median(firsts[1:])
        decode = partial(engine.iterate, [], decode=True)
        times = [_seconds(decode) for _ in range(STEPS + 4)][4:]  # the first warm up
        results[str(batch)] = {
            "decode_s": statistics.median(times),
            "encode_s": encode_s,
            "encode_tokens": batch * PROMPT,
        }
    return results


def _seconds(step: Callable[[], object]) -> float:
    begun = time.perf_counter()
    step()
    return time.perf_counter() - begun


def compare(peer: str, ours: Sequence[dict], theirs: Sequence[dict]) -> list[dict]:
    """Tokens per second and their ratio, case by case."""
    cases = [(f"decode, batch {batch}", batch, batch, "decode_s") for batch in BATCHES]
    cases += [
        (f"encode, {batch} x {PROMPT}", batch, batch * PROMPT, "encode_s") for batch in BATCHES[1:]
    ]
    rows = []
    for case, batch, tokens, key in cases:
        mine, other = (
            tokens / statistics.median(each[str(batch)][key] for each in runs)
            for runs in (ours, theirs)
        )
        rows.append(
            {
                "peer": NAMES[peer],
                "case": case,
                "exegpt": mine,
                "other": other,
                "ratio": mine / other,
            }
        )
    return rows


if __name__ == "__main__":
    main()
