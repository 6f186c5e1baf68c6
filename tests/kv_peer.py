"""One end of a KV transfer in a process of its own, to be killed: `kv_peer.py receive|send ADDRESS METHOD MESSAGE...`.

The receiver says "ready", then "began" when it has the first message of a push, and reads no further. The sender says
"sent" when its messages (in hexadecimal) are on their way, and waits for ever. No torch: this starts at once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc

from exegpt_wire.token import bearer

TOKEN = "the-token-of-these-tests"


def receive(address: str, method: str) -> None:
    def push(messages: Iterator[bytes], _context: object) -> bytes:
        next(messages)
        print("began", flush=True)
        threading.Event().wait()
        return b""

    _, service, name = method.split("/")
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(push)
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, {name: handler})]
    )
    server.add_insecure_port(address)
    server.start()
    print("ready", flush=True)
    server.wait_for_termination()


def send(address: str, method: str, messages: Sequence[bytes]) -> None:
    def stream() -> Iterator[bytes]:
        yield from messages
        print("sent", flush=True)
        threading.Event().wait()

    push: grpc.StreamUnaryMultiCallable[bytes, bytes]
    push = grpc.insecure_channel(address).stream_unary(method)
    push(stream(), timeout=60, metadata=bearer(TOKEN))


if __name__ == "__main__":
    end, address, method, *messages = sys.argv[1:]
    if end == "receive":
        receive(address, method)
    else:
        send(address, method, [bytes.fromhex(message) for message in messages])
