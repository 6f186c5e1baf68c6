# ruff: noqa: A005 (absolute imports only: the standard library's `token` stays within reach)
"""The token of a deployment: every call to a worker carries it as `authorization: Bearer <token>`.

It keeps strangers on the network from steering workers or feeding them KV; it does not encrypt. The token itself
appears in no message, log line or exception.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import grpc
from grpc import aio

from exegpt_planner.errors import InvalidSpec, Unavailable

HEALTH: Final = "/grpc.health.v1.Health/"
_KEY: Final = "authorization"
_LONGEST_BYTES: Final = 4096  # gRPC's own limit on all metadata of a call is 8 KiB

Metadata = tuple[tuple[str, str], ...]
if TYPE_CHECKING:  # generic in the stubs only
    Handler = grpc.RpcMethodHandler[Any, Any]


def bearer(token: str | None) -> Metadata:
    """The metadata of a call that carries `token`, for sync and aio clients alike; empty for None."""
    return ((_KEY, f"Bearer {token}"),) if token is not None else ()


def read_token(path: Path) -> str:
    """The token in a file, white space around it ignored."""
    try:
        token = path.read_bytes().strip()
    except OSError as error:
        problem = (
            f"cannot read the token file {path}: {error.strerror}. Create it, or name another."
        )
        raise Unavailable(problem) from None
    if not token:
        raise InvalidSpec(str(path), ["the token file is empty; write a long random word into it"])
    if len(token) > _LONGEST_BYTES:
        problem = f"the token has {len(token)} bytes, at most {_LONGEST_BYTES} fit a call"
        raise InvalidSpec(str(path), [problem])
    if not re.fullmatch(rb"[!-~]+", token):
        problem = "the token has white space or characters outside ASCII; use letters and digits"
        raise InvalidSpec(str(path), [problem])
    return token.decode("ascii")


class TokenInterceptor(grpc.ServerInterceptor):
    """Refuses every call, of whatever service, that does not carry the token; None lets all pass."""

    def __init__(self, token: str | None) -> None:
        self._expected = _expected(token)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        problem = _fault(self._expected, handler_call_details)
        return continuation(handler_call_details) if problem is None else _refusing(problem)


class AioTokenInterceptor(aio.ServerInterceptor):
    """The same for a server in an event loop."""

    def __init__(self, token: str | None) -> None:
        self._expected = _expected(token)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        problem = _fault(self._expected, handler_call_details)
        if problem is None:
            return await continuation(handler_call_details)

        async def refuse(_requests: object, context: aio.ServicerContext[Any, Any]) -> NoReturn:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, problem)

        return grpc.stream_stream_rpc_method_handler(refuse)


def _expected(token: str | None) -> bytes | None:
    return f"Bearer {token}".encode() if token is not None else None


def _fault(expected: bytes | None, call: grpc.HandlerCallDetails) -> str | None:
    """What is wrong with a call's token; None where nothing is, or none is expected, as of the kubelet's probes."""
    if expected is None or call.method.startswith(HEALTH):
        return None
    given = dict(call.invocation_metadata or ()).get(_KEY)
    if given is None:
        return "the call carries no token; start its sender with this deployment's"
    given_bytes = given if isinstance(given, bytes) else given.encode()
    if not hmac.compare_digest(given_bytes, expected):
        return "the call carries another deployment's token; use the same for all"
    return None


def _refusing(problem: str) -> Handler:
    """Answers a call of any kind at once, before it reads a message."""

    def refuse(_requests: object, context: grpc.ServicerContext) -> NoReturn:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, problem)

    return grpc.stream_stream_rpc_method_handler(refuse)
