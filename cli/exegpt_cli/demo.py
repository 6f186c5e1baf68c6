"""`exegpt demo`: the whole path on this machine, without questions, in a few minutes; it ends everything it started.

Prediction first: the plan is made before the load, and nothing is fitted to what the load shows.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import httpx
from httpx_sse import connect_sse

from exegpt_cli.bench.own import own_load, own_report, own_workload
from exegpt_cli.bench.render import render
from exegpt_cli.bench.run import run_load
from exegpt_cli.lifetime import ending_cleanly
from exegpt_cli.output import answer, progress, say
from exegpt_cli.own_server import Announcement, OwnServer
from exegpt_cli.summary import plan_text
from exegpt_planner.errors import InvalidSpec, Unavailable

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "laptop.yaml"
PROBES = 0.2  # of the load: answers of length s99, so that the promise about them can be measured
ANSWER_TOKENS = 96
ANSWER_TIMEOUT_S = 120.0
PROMPTS = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a Python function that returns the sum of two numbers.",
    "Give me three tips for a good night's sleep.",
)


def run_demo(file: Path | None, *, duration_s: float) -> None:
    """Profile, plan, serve, stream, load, and print predicted beside measured."""
    started = time.monotonic()
    manifest = _manifest(file)
    say(f"Demo of {manifest}: profile this machine, plan, serve, stream, load, compare.")
    with ending_cleanly(), OwnServer(manifest, probes=PROBES) as server:
        answer("\n" + plan_text(server.plan))
        for prompt in PROMPTS:
            _stream(server, prompt)
        workload, s99 = own_workload(manifest, server, PROBES)
        load = own_load(server, workload, duration_s=duration_s)
        title = f"Loading for {load.limits.duration_s:.0f} s: {load.arrivals}, {PROBES:.0%} of them s99 answers"
        with progress(title) as report:
            outcome = asyncio.run(run_load(load, report))
        say("Ending server and worker.")
    answer("")
    render(own_report(server, load, outcome, s99))
    answer(f"\nDone in {time.monotonic() - started:.0f} s; nothing is left running.")


def _manifest(file: Path | None) -> Path:
    if file is not None:
        return file
    if not EXAMPLE.exists():
        raise InvalidSpec(
            "exegpt demo", ["examples/laptop.yaml is not beside this installation; give -f FILE"]
        )
    return EXAMPLE


def _stream(server: Announcement, prompt: str) -> None:
    """Print the answer to `prompt` as it comes."""
    answer(f"> {prompt}")
    body = {
        "model": server.model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    url = f"{server.url}/chat/completions"
    try:
        with (
            httpx.Client(timeout=ANSWER_TIMEOUT_S, trust_env=False) as http,
            connect_sse(http, "POST", url, json=body) as events,
        ):
            events.response.raise_for_status()
            for event in events.iter_sse():
                if event.data != "[DONE]":
                    sys.stdout.write(_text(event.data))
                    sys.stdout.flush()
    except httpx.HTTPError as error:
        raise Unavailable(f"the server at {url} did not answer: {error}. Run it again.") from None
    answer("\n")


def _text(data: str) -> str:
    """The piece of answer in one event."""
    event = json.loads(data)
    if "error" in event:
        raise Unavailable(f"the server ended the answer: {event['error']}. Run it again.")
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])
