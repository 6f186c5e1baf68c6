"""The other processes of kv_transfer.py: a receiver for every way of sending, and a link of a fixed rate."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

import grpc
import torch
from google.protobuf.wrappers_pb2 import BytesValue

from exegpt_runner.kv_transfer.arrived import Receiving
from exegpt_runner.kv_transfer.memory import keep_freed
from exegpt_runner.kv_transfer.receiver import Landing, kv_handler
from exegpt_wire import GRPC_OPTIONS
from exegpt_wire.token import TokenInterceptor

TOKEN = "a-token-of-the-benchmark"
PROTOBUF_METHOD = "/benchmark.KV/Push"
LINK_PIECE_BYTES = 64 * 1024
LATE_S = 0.002


def serve(conn: Connection, core: int, folder: Path) -> None:
    """Receives until the pipe closes. Out go its addresses; a `Receiving` that comes in is served; the answer to
    whatever comes in is the process's CPU time.
    """
    os.sched_setaffinity(0, {core})
    keep_freed()
    torch.set_num_threads(1)
    landing = Landing(on_news=lambda: [landing.take(transfer) for transfer in landing.arrived()])
    server = grpc.server(
        ThreadPoolExecutor(max_workers=8),
        interceptors=[TokenInterceptor(TOKEN)],
        options=list(GRPC_OPTIONS),
    )
    server.add_generic_rpc_handlers([kv_handler(landing), _protobuf_handler()])
    port = server.add_insecure_port("127.0.0.1:0")
    unix = f"unix://{folder / 'kv.sock'}"
    server.add_insecure_port(unix)
    server.start()
    raw_tcp = socket.create_server(("127.0.0.1", 0))
    raw_unix = socket.socket(socket.AF_UNIX)
    raw_unix.bind(str(folder / "raw.sock"))
    raw_unix.listen()
    for listener in (raw_tcp, raw_unix):
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
    conn.send((f"127.0.0.1:{port}", unix, raw_tcp.getsockname(), raw_unix.getsockname()))
    try:
        while True:
            asked: Receiving | None = conn.recv()
            if asked is not None:
                landing.serve(asked)
            conn.send(time.process_time())
    except EOFError:
        server.stop(None)


def _accept(listener: socket.socket) -> None:
    """Reads layers into one warm buffer, than which nothing is faster, and acknowledges each transfer."""
    while True:
        connection, _ = listener.accept()
        with connection:
            size, count = (int(word) for word in connection.makefile("rb", 0).readline().split())
            view = torch.empty(size, dtype=torch.uint8).numpy().data
            while _read_layers(connection, view, count):
                connection.sendall(b".")


def _read_layers(connection: socket.socket, view: memoryview, count: int) -> bool:
    for _ in range(count):
        filled = 0
        while filled < len(view):
            got = connection.recv_into(view[filled:])
            if not got:
                return False
            filled += got
    return True


def _protobuf_handler() -> grpc.GenericRpcHandler:
    """KV as protobuf `bytes`, copied into one warm buffer; no checksum."""
    buffer = torch.empty(64 << 20, dtype=torch.uint8).numpy().data

    def push(messages: Iterator[BytesValue], _context: object) -> BytesValue:
        for message in messages:
            buffer[: len(message.value)] = message.value
        return BytesValue()

    serialize: Callable[[BytesValue], bytes] = BytesValue.SerializeToString
    method = grpc.stream_unary_rpc_method_handler(push, BytesValue.FromString, serialize)
    return grpc.method_handlers_generic_handler("benchmark.KV", {"Push": method})


def link(conn: Connection, target: tuple[str, int], bytes_per_s: float) -> None:
    """Passes TCP connections on to `target`, what comes in at no more than the given rate; runs until killed."""
    listener = socket.create_server(("127.0.0.1", 0))
    conn.send(listener.getsockname())
    while True:
        near, _ = listener.accept()
        far = socket.create_connection(target)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_pass_on, args=(near, far, bytes_per_s), daemon=True).start()
        threading.Thread(target=_pass_on, args=(far, near, None), daemon=True).start()


def _pass_on(source: socket.socket, sink: socket.socket, bytes_per_s: float | None) -> None:
    """A piece arrives when the link has been busy with it for its size / rate."""
    free_s = 0.0
    with suppress(OSError):  # an end has gone
        while piece := source.recv(LINK_PIECE_BYTES):
            if bytes_per_s is not None:
                # What a late waking of this thread lost is made up for; a link that was idle gains no more than that.
                free_s = max(free_s, time.monotonic() - LATE_S) + len(piece) / bytes_per_s
                time.sleep(max(0.0, free_s - time.monotonic()))
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
