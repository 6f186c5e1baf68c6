"""The peers of the comparison: what each computes in, how it batches, and how its server is started.

Every server is given room for the most queries of any level, but for llama.cpp's, which is started anew with as many
slots as there are queries; the load's concurrency is what is tuned. llama.cpp and vLLM bring servers of their own;
transformers and ctranslate2 are served by peer_http.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import peers
from engines_model import gguf_of
from engines_serving import SERVED_NAME, Command
from exegpt_cli.placement import Placement

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """What a server must hold."""

    folder: Path
    placement: Placement
    queries: int  # at once
    context: int  # tokens of the longest query


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One peer."""

    name: str
    title: str
    dtype: str
    batching: str
    tells_start: bool  # its answers say when their encode began
    command: Callable[[Room], Command]
    slots_are_level: bool = False  # started anew for each level, with as many slots


def _transformers(batching: str) -> Callable[[Room], Command]:
    def command(room: Room) -> Command:
        python = peers.environment("transformers")
        options = ("--batching", batching)
        return _served_here(python, "peer_transformers.py", room, options)

    return command


def _ctranslate2(compute: str) -> Callable[[Room], Command]:
    def command(room: Room) -> Command:
        python = peers.environment("ctranslate2")
        return _served_here(python, "peer_ctranslate2.py", room, ("--compute", compute))

    return command


def _served_here(python: Path, script: str, room: Room, options: tuple[str, ...]) -> Command:
    sizes = ("--threads", str(room.placement.threads), "--most", str(room.queries))
    return Command(
        words=(
            str(python),
            str(HERE / script),
            str(room.folder),
            "--port",
            "{port}",
            *sizes,
            *options,
        ),
        computing="children",
        environment={},
    )


def _llamacpp(room: Room) -> Command:
    threads = str(room.placement.threads)
    return Command(
        words=(
            str(peers.llama_server()), "--model", str(gguf_of(room.folder)), "--alias", SERVED_NAME,
            "--host", "127.0.0.1", "--port", "{port}", "--threads", threads, "--threads-batch", threads,
            "--parallel", str(room.queries), "--ctx-size", str(room.queries * _whole(room.context)),
            "--cache-type-k", "bf16", "--cache-type-v", "bf16",
            # Prompts are random: there is nothing to reuse. Greedy answers need no other sampler.
            "--no-cache-prompt", "--slot-prompt-similarity", "0", "--cache-ram", "0",
            "--samplers", "top_k", "--top-k", "1", "--no-webui", "--log-verbosity", "1",
        ),
        computing="main thread",
        environment={},
    )  # fmt: skip


def _vllm(room: Room) -> Command:
    cores = ",".join(map(str, room.placement.worker_cores[0]))
    return Command(
        words=(
            str(peers.environment("vllm")), "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(room.folder), "--served-model-name", SERVED_NAME,
            "--host", "127.0.0.1", "--port", "{port}", "--dtype", "bfloat16",
            "--max-num-seqs", str(room.queries), "--max-model-len", str(_whole(room.context)),
            "--no-enable-prefix-caching", "--disable-uvicorn-access-log",
        ),
        computing="children",
        environment={
            "VLLM_CPU_OMP_THREADS_BIND": cores, "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CACHE_ROOT": str(peers.folder() / "vllm" / "compiled"),
            "VLLM_LOGGING_LEVEL": "WARNING", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1",
        },
    )  # fmt: skip


def _whole(context: int) -> int:
    """Whole pages of 64 tokens, and one beside."""
    return (context // 64 + 2) * 64


PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            name="transformers-static", title="transformers, static batches", dtype="bf16",
            batching="static", tells_start=True, command=_transformers("static"),
        ),
        Peer(
            name="transformers", title="transformers, continuous batching", dtype="bf16",
            batching="continuous", tells_start=True, command=_transformers("continuous"),
        ),
        Peer(
            name="llamacpp", title="llama.cpp (llama-server)", dtype="bf16",
            batching="continuous", tells_start=False, command=_llamacpp,
            # More slots than queries scatter these over the slots, and a batch of slots that are not neighbours falls
            # apart: 95 tokens/s with 128 slots for 16 queries, 209 with 16, in one trial.
            slots_are_level=True,
        ),
        Peer(
            name="ctranslate2", title="ctranslate2, float32", dtype="float32",
            batching="static, rows leave early", tells_start=True, command=_ctranslate2("float32"),
        ),
        Peer(
            name="ctranslate2-int8", title="ctranslate2, int8", dtype="int8",
            batching="static, rows leave early", tells_start=True, command=_ctranslate2("int8"),
        ),
        Peer(
            name="vllm", title="vLLM (CPU build)", dtype="bf16",
            batching="continuous", tells_start=False, command=_vllm,
        ),
    )
}  # fmt: skip
