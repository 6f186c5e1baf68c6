"""What a push's header must say to be let in; every refusal is a gRPC status with a sentence."""

from __future__ import annotations

import grpc

from exegpt_runner.kv_transfer.arrived import Limits, Receiving
from exegpt_runner.kv_transfer.framing import dtype_name
from exegpt_wire import PROTOCOL
from exegpt_wire import worker_pb2 as pb


class Refused(Exception):
    """This push does not land; `code` and the text go to its sender."""

    def __init__(self, code: grpc.StatusCode, problem: str) -> None:
        self.code = code
        super().__init__(problem)


def not_for_us(problem: str) -> Refused:
    """The push is for another worker, epoch or model."""
    return Refused(grpc.StatusCode.FAILED_PRECONDITION, problem)


def damaged(problem: str) -> Refused:
    """The stream is not what its sender sent."""
    return Refused(grpc.StatusCode.DATA_LOSS, problem)


def no_room(problem: str) -> Refused:
    """The push is larger than anything this worker takes."""
    return Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, problem)


def replayed(problem: str) -> Refused:
    """The push, or a part of it, has come before."""
    return Refused(grpc.StatusCode.ALREADY_EXISTS, problem)


def cancelled(problem: str) -> Refused:
    """Nobody waits for the push any more."""
    return Refused(grpc.StatusCode.CANCELLED, problem)


def check_kind(header: pb.KVHeader, receiving: Receiving) -> None:
    """Refuses KV that this worker, as it is configured, cannot use."""
    if header.protocol != PROTOCOL:
        problem = (
            f"protocol {header.protocol} is not this worker's {PROTOCOL}; use one version of exegpt"
        )
        raise not_for_us(problem)
    ours = {
        "incarnation": (header.incarnation, receiving.incarnation),
        "epoch": (header.epoch, receiving.epoch),
        "model": (header.model_fingerprint, receiving.model_fingerprint),
        "weights": (header.weights_digest, receiving.weights_digest),
        "dtype": (header.dtype, dtype_name(receiving.dtype)),
        "num_kv_heads": (header.num_kv_heads, receiving.num_kv_heads),
        "head_dim": (header.head_dim, receiving.head_dim),
    }
    problems = [
        f"{name} {theirs} is not this worker's {own}"
        for name, (theirs, own) in ours.items()
        if theirs != own
    ]
    if problems:
        raise not_for_us("; ".join(problems) + ". Configure both workers alike, then hand over")


def check_content(header: pb.KVHeader, receiving: Receiving, limits: Limits) -> None:
    """Refuses queries, lengths and layers that make no sense or can never fit."""
    num_queries = len(header.queries)
    if num_queries > limits.queries:
        raise no_room(f"{num_queries} queries; a transfer brings at most {limits.queries}")
    if len(header.tokens) != num_queries:
        raise not_for_us(f"{num_queries} queries with {len(header.tokens)} lengths")
    if not all(header.tokens):
        raise not_for_us("a query without tokens; every query has some KV")
    if len(set(header.queries)) != num_queries:
        raise not_for_us("a query comes twice")
    own, end = receiving.layers, header.first_layer + header.num_layers
    if header.num_layers == 0 or header.first_layer < own.start or end > own.stop:
        raise not_for_us(
            f"layers {header.first_layer} to {end} are not all among this worker's, {own.start} to {own.stop}; "
            "send it only its own"
        )
    needed = receiving.transfer_bytes(sum(header.tokens))
    if needed > receiving.capacity_bytes:
        raise no_room(
            f"all layers take {needed} bytes, this worker holds at most {receiving.capacity_bytes}. "
            "Hand over fewer queries at once, or give it more room"
        )
