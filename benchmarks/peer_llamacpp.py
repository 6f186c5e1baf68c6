"""Runs inside llama.cpp's own environment: encode and decode speed of a GGUF at given batch sizes,
as JSON on stdout.

python peer_llamacpp.py MODEL.gguf --batches 1,8,32 --prompt 128 --steps 32 --threads 1
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import time

import llama_cpp as ll


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("model")
    options.add_argument("--batches", default="1,8,32")
    options.add_argument("--prompt", type=int, default=128)
    options.add_argument("--steps", type=int, default=32)
    options.add_argument("--threads", type=int, default=1)
    given = options.parse_args()
    batches = [int(part) for part in given.batches.split(",")]
    ll.llama_log_set(_quiet, ctypes.c_void_p(0))
    ll.llama_backend_init()
    model = ll.llama_model_load_from_file(given.model.encode(), ll.llama_model_default_params())
    if not model:
        raise SystemExit(f"llama.cpp cannot load {given.model}")
    length = given.prompt + given.steps + 8
    context = _context(model, max(batches), length, given.threads, given.prompt)
    results = {}
    for batch in batches:
        memory = ll.llama_get_memory(context)
        ll.llama_memory_clear(memory, True)
        encode_s = _encode(context, batch, given.prompt)
        for step in range(4):  # warm-up
            _decode(context, batch, given.prompt + step)
        times = [_decode(context, batch, given.prompt + 4 + step) for step in range(given.steps)]
        times.sort()
        results[str(batch)] = {
            "decode_s": times[len(times) // 2],
            "encode_s": encode_s,
            "encode_tokens": batch * given.prompt,
        }
    print(json.dumps({"engine": "llama.cpp", "version": ll.__version__, "batches": results}))


@ll.llama_log_callback
def _quiet(_level: int, _text: bytes, _data: object) -> None:
    pass


def _context(model, batch: int, length: int, threads: int, prompt: int):
    parameters = ll.llama_context_default_params()
    parameters.n_ctx = batch * length
    parameters.n_seq_max = batch
    parameters.n_batch = max(batch * prompt, 512)
    parameters.n_ubatch = max(min(batch, 8) * prompt, 512)
    parameters.n_threads = parameters.n_threads_batch = threads
    parameters.kv_unified = False
    context = ll.llama_init_from_model(model, parameters)
    if not context:
        raise SystemExit("llama.cpp cannot make a context of that size")
    return context


def _run(context, rows: list[tuple[int, int, int, bool]]) -> float:
    """Seconds of one llama_decode over rows of (token, position, sequence, wants logits)."""
    batch = ll.llama_batch_init(len(rows), 0, 1)
    batch.n_tokens = len(rows)
    for index, (token, position, sequence, wanted) in enumerate(rows):
        batch.token[index] = token
        batch.pos[index] = position
        batch.n_seq_id[index] = 1
        batch.seq_id[index][0] = sequence
        batch.logits[index] = wanted
    begun = time.perf_counter()
    if ll.llama_decode(context, batch) != 0:
        raise SystemExit("llama_decode failed")
    ll.llama_synchronize(context)
    taken = time.perf_counter() - begun
    ll.llama_batch_free(batch)
    return taken


def _encode(context, batch: int, prompt: int) -> float:
    draw = random.Random(0)
    rows = [
        (draw.randrange(1000, 5000), position, sequence, position == prompt - 1)
        for sequence in range(batch)
        for position in range(prompt)
    ]
    return _run(context, rows)


def _decode(context, batch: int, position: int) -> float:
    draw = random.Random(position)
    return _run(context, [(draw.randrange(1000, 5000), position, s, True) for s in range(batch)])


if __name__ == "__main__":
    main()
