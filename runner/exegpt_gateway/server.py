"""Runs the application on a port, and ends it without cutting streams.

Signals belong to the caller, who sets `stop`. Then new requests are refused by the application while the
port stays open, running answers finish, and after `drain_s` at the latest what is left is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import socket
from collections.abc import Callable, Iterator

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from exegpt_planner.errors import Unavailable

BACKLOG = 2048  # connections that wait to be accepted; uvicorn's own default
KEEP_ALIVE_S = (
    75  # longer than clients keep idle connections, so that none is closed under a request
)
CUT_S = 1  # what answers still running after the drain get to notice that they are cancelled


class _InFlight:
    """The application, counting the requests it is at work on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._num_running = 0
        self.is_idle = asyncio.Event()
        self.is_idle.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._num_running += 1
        self.is_idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_running -= 1
            if not self._num_running:
                self.is_idle.set()


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers, telling when it is up."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()


async def serve(
    app: FastAPI,
    host: str,
    port: int,
    *,
    on_started: Callable[[str, int], None],
    stop: asyncio.Event,
    drain_s: Callable[[], float],
) -> None:
    """Serves until `stop` is set and the running answers are through; port 0 takes a free one.

    Drain the conductor before setting `stop`, so that new queries are refused meanwhile. `drain_s` is asked then.
    """
    listener = _listen(host, port)
    counted = _InFlight(app)
    server = _Server(
        uvicorn.Config(
            counted,
            access_log=False,
            lifespan="off",
            log_config=None,
            server_header=False,
            timeout_graceful_shutdown=CUT_S,
            timeout_keep_alive=KEEP_ALIVE_S,
            ws="none",
        ),
        functools.partial(on_started, *listener.getsockname()[:2]),
    )
    running = asyncio.create_task(server.serve(sockets=[listener]))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s()):
                await counted.is_idle.wait()
    finally:
        stopping.cancel()
        server.should_exit = True
        await running


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        remedy = {
            errno.EADDRINUSE: "Stop what listens there, or choose another port.",
            errno.EACCES: "Ports below 1024 need privileges; choose a higher one.",
        }.get(error.errno or 0, "Choose an address of this machine.")
        is_name = isinstance(error, socket.gaierror)  # its numbers are not the system's
        reason = error.strerror if is_name else os.strerror(error.errno or 0)
        raise Unavailable(f"cannot listen on {host} port {port}: {reason}. {remedy}") from None
