"""Runs inside transformers' own environment: a model behind `generate` in static batches, or behind the continuous
batching manager.

    python peer_transformers.py FOLDER --port 8000 --batching static|continuous

`transformers serve` takes prompts as text alone and always stops at the end token, so it can't be given the lengths of
this load: the manager it is made of is served by peer_http.py instead.

static: what waits becomes one batch, padded on the left; it runs until its longest answer is done, and what arrives
meanwhile waits. Tokens are streamed as they come, so a short answer is complete when its own last token is, but its
row is computed to the end of the batch: `generate` has no other way.
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path
from typing import Any

import torch

from peer_http import Ask, Inbox, Piece, serve

PAD = 0
PAGE_TOKENS = 32  # of the paged KV cache: prompts and answers of this load are short
CACHE_TOKENS = 128 * 1024  # room for the most queries at their longest


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--batching", choices=("static", "continuous"), required=True)
    options.add_argument("--attention", default="sdpa")
    serve(work, options)


def work(inbox: Inbox, given: argparse.Namespace) -> None:
    torch.set_num_threads(given.threads)
    model = load(given.folder, given.attention)
    with torch.inference_mode():
        if given.batching == "static":
            answer_batches(model, inbox, given.most)
        else:
            answer_continuously(model, inbox, given.most)


def load(folder: Path, attention: str) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, attn_implementation=attention
    )
    model.generation_config.eos_token_id = None  # lengths are enforced
    model.generation_config.pad_token_id = PAD
    return model.eval()


def answer_batches(model: Any, inbox: Inbox, most: int) -> None:
    """One batch after the other."""
    inbox.ready()
    while True:
        asks = inbox.wait(most)
        longest = max(len(ask.prompt) for ask in asks)
        padding = [longest - len(ask.prompt) for ask in asks]
        rows = [[PAD] * pad + ask.prompt for pad, ask in zip(padding, asks, strict=True)]
        mask = [[0] * pad + [1] * (longest - pad) for pad in padding]
        model.generate(
            torch.tensor(rows),
            attention_mask=torch.tensor(mask),
            max_new_tokens=max(ask.max_tokens for ask in asks),
            do_sample=False,
            streamer=_Tokens(inbox, asks),
        )


class _Tokens:
    """A streamer for batches: hands each row's token to its client until the row has what it asked for."""

    def __init__(self, inbox: Inbox, asks: list[Ask]) -> None:
        self._inbox, self._asks = inbox, asks
        self._step = -1  # the prompts come first
        self._begun_s = time.monotonic()

    def put(self, tokens: torch.Tensor) -> None:
        self._step += 1
        if self._step == 0:
            return
        pieces = [
            Piece(ask.number, token, self._begun_s)
            for ask, token in zip(self._asks, tokens.tolist(), strict=True)
            if self._step <= ask.max_tokens
        ]
        self._inbox.give(pieces)

    def end(self) -> None:
        pass


def answer_continuously(model: Any, inbox: Inbox, most: int) -> None:
    """Queries join and leave at every step, as the manager decides."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    config = ContinuousBatchingConfig(
        page_size=PAGE_TOKENS,
        num_blocks=CACHE_TOKENS // PAGE_TOKENS,
        max_requests_per_batch=most,
        max_batch_tokens=2048,
        allow_block_sharing=False,  # prompts are random: there is nothing to share
    )
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=PAD),
        continuous_batching_config=config,
    )
    manager.start()
    threading.Thread(target=_hand_out, args=(manager, inbox), daemon=True).start()
    inbox.ready()
    while True:
        ask = inbox.take()
        manager.add_request(
            ask.prompt,
            request_id=str(ask.number),
            max_new_tokens=ask.max_tokens,
            streaming=True,
            eos_token_id=-1,
        )


def _hand_out(manager: Any, inbox: Inbox) -> None:
    given: dict[str, int] = {}
    offset_s = time.monotonic() - time.perf_counter()  # the manager reads the other clock
    while True:
        output = manager.get_result(timeout=1.0)
        if output is None:
            continue
        if output.error is not None:
            raise SystemExit(output.error)
        name = output.request_id
        before = given.get(name, 0)
        begun_s = output.lifespan[0] + offset_s
        inbox.give([Piece(int(name), token, begun_s) for token in output.generated_tokens[before:]])
        given[name] = len(output.generated_tokens)
        if output.is_finished():
            del given[name]


if __name__ == "__main__":
    main()
