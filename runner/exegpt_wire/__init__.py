"""The gRPC messages between conductor and workers; no torch, no policy.

`PROTOCOL` changes when the meaning of a message does; a worker refuses another number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

PROTOCOL: Final = 2

EPOCH_KEY: Final = "exegpt-epoch"  # metadata of Run: the epoch that its conductor configured

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024  # a phase of whole prompts; gRPC's own limit is 4 MiB

# Both ends. Without so_reuseport=0 a second server would bind the same TCP port and share its calls.
GRPC_OPTIONS: Final[Sequence[tuple[str, int]]] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 500),  # a conductor's pings are no abuse
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    (
        "grpc.http2.max_frame_size",
        1024 * 1024,
    ),  # of 16 KiB by default; KV costs both ends a tenth less CPU
)


def message_of(details: str | None) -> str:
    """The text of a gRPC status, never empty."""
    return details or "no reason given"
