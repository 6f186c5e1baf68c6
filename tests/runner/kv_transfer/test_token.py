"""Calls of every kind need the token; it never shows in a text."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc import aio

from exegpt_planner.errors import InvalidSpec, Unavailable
from exegpt_wire.token import TokenInterceptor, bearer, read_token

SECRET = "s3cret-of-this-deployment"
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def one(_request: object, _context: object) -> bytes:
    return b"answer"


def many(_request: object, _context: object) -> Iterator[bytes]:
    return iter([b"answer"])


@pytest.fixture(params=[SECRET, None], ids=["token", "none"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A server with one method of each kind."""
    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "unary_unary": grpc.unary_unary_rpc_method_handler(one),
        "unary_stream": grpc.unary_stream_rpc_method_handler(many),
        "stream_unary": grpc.stream_unary_rpc_method_handler(one),
        "stream_stream": grpc.stream_stream_rpc_method_handler(many),
    }
    server = grpc.server(
        ThreadPoolExecutor(max_workers=4), interceptors=[TokenInterceptor(request.param)]
    )
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("service", methods)])
    address = f"unix://{tmp_path / 'server.sock'}"
    server.add_insecure_port(address)
    server.start()
    yield address if request.param else f"open {address}"
    server.stop(None).wait()


def call(address: str, kind: str, metadata: tuple[tuple[str, str], ...]) -> list[bytes]:
    with grpc.insecure_channel(address) as channel:
        request = itertools.repeat(b"request", 2) if kind.startswith("stream") else b"request"
        answer = getattr(channel, kind)(f"/service/{kind}")(request, metadata=metadata, timeout=10)
        return [answer] if kind.endswith("unary") else list(answer)


@pytest.mark.parametrize("kind", KINDS)
def test_calls_of_every_kind_need_the_token(kind: str, address: str) -> None:
    if address.startswith("open "):
        assert call(address.removeprefix("open "), kind, ()) == [b"answer"]
        return
    assert call(address, kind, bearer(SECRET)) == [b"answer"]
    for metadata in ((), bearer("wrong"), bearer(SECRET[:-1]), (("authorization", SECRET),)):
        with pytest.raises(grpc.RpcError) as caught:
            call(address, kind, metadata)
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert caught.value.details()
        assert SECRET not in str(caught.value)


@pytest.mark.parametrize("address", [SECRET], indirect=True)
async def test_an_asynchronous_client_passes_it_too(address: str) -> None:
    async with aio.insecure_channel(address) as channel:
        method: aio.UnaryUnaryMultiCallable[bytes, bytes]
        method = channel.unary_unary("/service/unary_unary")
        assert await method(b"request", metadata=bearer(SECRET), timeout=10) == b"answer"
        with pytest.raises(aio.AioRpcError, match="no token"):
            await method(b"request", metadata=bearer(None), timeout=10)


def test_a_token_is_read_without_its_white_space(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"  {SECRET}\n")
    path.chmod(0o644)  # as Kubernetes mounts a secret
    assert read_token(path) == SECRET


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("two words", "white space or characters outside ASCII"),
        ("schlüssel", "white space or characters outside ASCII"),
        ("x" * 5000, "5000 bytes"),
    ],
)
def test_what_is_no_token_is_refused_without_showing_it(
    content: str, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(InvalidSpec, match=words) as caught:
        read_token(path)
    assert not content.strip() or content.strip() not in str(caught.value)


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"cannot read the token file .*/none: No such file"):
        read_token(tmp_path / "none")
