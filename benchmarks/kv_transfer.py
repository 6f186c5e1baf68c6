"""How fast KV goes from one worker's process to another's, beside raw sockets, in turns in one run.

    python benchmarks/kv_transfer.py [--quick] [--rounds 11] [--out kv.json]

Two processes on a core each; every way sends the same layers. Raw sockets have no checksum and read into one warm
buffer. Ratios to the raw TCP socket: the median over the rounds, and that of the best rounds, which other programs on
the machine disturb least. Then, over a link of a fixed rate (a relay on 127.0.0.1): how long after the end of an
encode the last KV is acknowledged, when layers are sent as they are made and when the whole encode is
waited for. Making a layer is a wait on the clock.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import grpc
import torch
from torch import Tensor

from exegpt_runner.kv_transfer.memory import keep_freed
from kv_receiver import link
from kv_ways import Ours, Protobuf, RawSocket, Receiver, Shape

PEER = "raw TCP socket"

# The demo model after an encode of 8 queries of 128 or 256 tokens; a few layers of a model of 70B.
SHAPES = (
    Shape(name="30 layers, 8 x 128", num_layers=30, num_kv_heads=3, head_dim=64, tokens=(128,) * 8),
    Shape(name="30 layers, 8 x 256", num_layers=30, num_kv_heads=3, head_dim=64, tokens=(256,) * 8),
    Shape(
        name="8 of 70B, 8 x 1024", num_layers=8, num_kv_heads=8, head_dim=128, tokens=(1024,) * 8
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Ratios are to the peer: `ratio` in the same round, the median; `best_ratio` of the best rounds."""

    gb_per_s: float  # the median
    ratio: float
    best_gb_per_s: float  # what a quiet machine comes nearest to
    best_ratio: float
    gb_per_cpu_s: float  # of the busier process


def speeds(receiver: Receiver, shape: Shape, rounds: int) -> dict[str, Speed]:
    """Every way's speed over rounds taken in turns; the first one only warms up."""
    receiver.serve(shape)
    layers = shape.layers()
    copy = torch.empty_like(layers[0])
    tcp, unix = Ours(receiver.tcp, shape), Ours(receiver.unix, shape)
    raw_tcp = RawSocket(socket.AF_INET, receiver.raw_tcp, layers)
    raw_unix = RawSocket(socket.AF_UNIX, receiver.raw_unix, layers)
    protobuf = Protobuf(receiver.tcp, layers)
    ways: dict[str, Callable[[], object]] = {
        "memcpy": lambda: [copy.copy_(layer) for layer in layers],
        "raw Unix socket": raw_unix.send,
        PEER: raw_tcp.send,
        "ours, Unix socket": lambda: unix.send(layers),
        "ours, TCP": lambda: tcp.send(layers),
        "gRPC, protobuf bytes, TCP": protobuf.send,
    }
    taken = []
    for turn in range(rounds + 1):
        first = turn % len(ways)  # whoever follows raw sockets finds cold caches
        order = [*ways, *ways][first : first + len(ways)]
        taken.append({way: timed(receiver, ways[way]) for way in order})
    for end in (tcp, unix, raw_tcp, raw_unix, protobuf):
        end.close()
    num_bytes = shape.num_layers * shape.layer_bytes
    return {way: speed(way, taken[1:], num_bytes) for way in ways}


def timed(receiver: Receiver, send: Callable[[], object]) -> tuple[float, float]:
    """Seconds of one transfer: on the clock, and of the busier process's CPU."""
    theirs, ours, begun = receiver.cpu_s(), time.process_time(), time.perf_counter()
    send()
    wall_s = time.perf_counter() - begun
    return wall_s, max(time.process_time() - ours, receiver.cpu_s() - theirs)


def speed(way: str, taken: Sequence[Mapping[str, tuple[float, float]]], num_bytes: int) -> Speed:
    wall, cpu = zip(*(each[way] for each in taken), strict=True)
    peer = [each[PEER][0] for each in taken]
    return Speed(
        gb_per_s=num_bytes / statistics.median(wall) / 1e9,
        ratio=statistics.median(theirs / ours for theirs, ours in zip(peer, wall, strict=True)),
        best_gb_per_s=num_bytes / min(wall) / 1e9,
        best_ratio=min(peer) / min(wall),
        gb_per_cpu_s=num_bytes / statistics.median(cpu) / 1e9,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposed:
    """Seconds from the end of an encode to the acknowledgement of its last KV, over a slow link."""

    layer_ms: float
    encode_ms: float
    link_ms: float  # for all bytes
    by_layer_ms: float
    by_layer_ideal_ms: float  # by arithmetic
    after_encode_ms: float
    after_encode_ideal_ms: float


def exposed(address: str, shape: Shape, layer_s: float, rate: float, rounds: int) -> Exposed:
    """Both ways of sending, in turns."""
    layers = shape.layers()
    ours = Ours(address, shape)
    ours.send(layers)  # connects
    by_layer = statistics.median(by_layer_s(ours, layers, layer_s) for _ in range(rounds))
    after = statistics.median(after_encode_s(ours, layers, layer_s) for _ in range(rounds))
    ours.close()
    layer_link_s = shape.layer_bytes / rate
    free_s = 0.0
    for index in range(shape.num_layers):
        free_s = max(free_s, (index + 1) * layer_s) + layer_link_s
    return Exposed(
        layer_ms=1e3 * layer_s,
        encode_ms=1e3 * layer_s * shape.num_layers,
        link_ms=1e3 * layer_link_s * shape.num_layers,
        by_layer_ms=1e3 * by_layer,
        by_layer_ideal_ms=1e3 * (free_s - layer_s * shape.num_layers),
        after_encode_ms=1e3 * after,
        after_encode_ideal_ms=1e3 * layer_link_s * shape.num_layers,
    )


def by_layer_s(ours: Ours, layers: Sequence[Tensor], layer_s: float) -> float:
    outgoing = ours.open()
    for index, _ in encode(layers, layer_s):
        outgoing.layer(index, layers[index])
    ended = time.monotonic()
    outgoing.finish()
    ours.wait()
    return time.monotonic() - ended


def after_encode_s(ours: Ours, layers: Sequence[Tensor], layer_s: float) -> float:
    for _ in encode(layers, layer_s):
        pass
    ended = time.monotonic()
    ours.send(layers)
    return time.monotonic() - ended


def encode(layers: Sequence[Tensor], layer_s: float) -> Iterator[tuple[int, float]]:
    """Each layer's index once its time is over, on one clock, so that late wakings do not add up."""
    begun = time.monotonic()
    for index in range(len(layers)):
        due = begun + (index + 1) * layer_s
        time.sleep(max(0.0, due - time.monotonic()))
        yield index, due


def slow_link(target: str, rate: float) -> tuple[str, multiprocessing.process.BaseProcess]:
    """The address of a link to `target`, and the process to end."""
    context = multiprocessing.get_context("spawn")
    conn, theirs = context.Pipe()
    host, port = target.split(":")
    process = context.Process(target=link, args=(theirs, (host, int(port)), rate), daemon=True)
    process.start()
    near_host, near_port = conn.recv()
    return f"{near_host}:{near_port}", process


def main() -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--rounds", type=int, default=11)
    options.add_argument("--quick", action="store_true", help="the demo model only, 3 rounds")
    options.add_argument("--rate", type=float, default=200e6, help="of the slow link, bytes/s")
    options.add_argument("--out", type=Path, help="write all numbers as JSON")
    chosen = options.parse_args()
    rounds, shapes = (3, SHAPES[:2]) if chosen.quick else (chosen.rounds, SHAPES)
    cores = sorted(os.sched_getaffinity(0))
    keep_freed()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        receiver = Receiver(Path(folder), cores[-1])
        address, link_process = slow_link(receiver.tcp, chosen.rate)
        os.sched_setaffinity(0, cores[:1])
        found = {shape.name: speeds(receiver, shape, rounds) for shape in shapes}
        receiver.serve(SHAPES[1])
        hidden = [
            exposed(address, SHAPES[1], layer_s, chosen.rate, min(rounds, 5))
            for layer_s in (0.004, 0.015)
        ]
        link_process.kill()
        receiver.close()
    show(found, hidden, chosen.rate)
    if chosen.out:
        chosen.out.write_text(json.dumps(as_json(found, hidden, chosen.rate), indent=2))


def show(found: Mapping[str, Mapping[str, Speed]], hidden: Sequence[Exposed], rate: float) -> None:
    for name, ways in found.items():
        print(
            f"{name:<28}{'GB/s':>8}{'of raw TCP':>12}{'best':>8}{'of raw TCP':>12}{'GB/CPU s':>10}"
        )
        for way, each in ways.items():
            print(
                f"  {way:<26}{each.gb_per_s:8.2f}{each.ratio:12.2f}{each.best_gb_per_s:8.2f}"
                f"{each.best_ratio:12.2f}{each.gb_per_cpu_s:10.2f}"
            )
    print(
        f"link of {rate / 1e6:.0f} MB/s, {SHAPES[1].name}: ms from the encode's end to the last KV"
    )
    print(
        f"{'encode':>10}{'link':>8}{'by layer':>10}{'(ideal)':>9}{'after encode':>14}{'(ideal)':>9}"
    )
    for row in hidden:
        print(
            f"{row.encode_ms:10.0f}{row.link_ms:8.0f}{row.by_layer_ms:10.1f}{row.by_layer_ideal_ms:9.1f}"
            f"{row.after_encode_ms:14.1f}{row.after_encode_ideal_ms:9.1f}"
        )


def as_json(
    found: Mapping[str, Mapping[str, Speed]], hidden: Sequence[Exposed], rate: float
) -> dict[str, Any]:
    return {
        "torch": torch.__version__,
        "grpcio": grpc.__version__,
        "cores": len(os.sched_getaffinity(0)),
        "speeds": {
            name: {way: asdict(each) for way, each in ways.items()} for name, ways in found.items()
        },
        "link_bytes_per_s": rate,
        "exposed": [asdict(row) for row in hidden],
    }


if __name__ == "__main__":
    main()
