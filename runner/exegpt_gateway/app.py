"""The front door: OpenAI's routes over a conductor, health, and metrics.

Knows HTTP and nothing of schedules. Each route reads a bounded body, checks it, and hands on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from exegpt_gateway import chat, completions
from exegpt_gateway.answer import DRAIN_RETRY_S, Wording, answer
from exegpt_gateway.ask import Ask
from exegpt_gateway.errors_http import Refused, busy, install
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.openai_schema import SamplingRequest, read_chat, read_completion
from exegpt_gateway.served import ServedModel

if TYPE_CHECKING:
    from exegpt_gateway.conductor import Conductor

BODY_LIMIT_BYTES = 4 << 20  # 128 K tokens as JSON are below 1 MB, as ids or as text
IN_LOOP_BYTES = 8 << 10  # larger bodies are tokenised in a thread: 8 KB take about 5 ms


def build_app(
    conductor: Conductor,
    served: ServedModel,
    metrics: Metrics,
    *,
    ready_once: Callable[[], bool] | None = None,
) -> FastAPI:
    """The HTTP application for one served model.

    With `ready_once` it is ready as soon as that says so, and stays it: queries wait for workers that come back.
    """
    served = replace(served, context=conductor.context)  # no longer than the KV arena holds
    app = FastAPI(title="exegpt", docs_url=None, redoc_url=None, openapi_url=None)
    install(app)
    _add_openai_routes(app, conductor, served)
    _add_service_routes(app, conductor, metrics, ready_once=ready_once)
    return app


def _add_openai_routes(app: FastAPI, conductor: Conductor, served: ServedModel) -> None:
    card = {"id": served.name, "object": "model", "created": int(time.time()), "owned_by": "exegpt"}

    async def respond(http: Request, ask: Ask, wording: Wording) -> Response:
        return await answer(http, ask, wording, conductor=conductor, served=served)

    def ask_completion(body: bytes) -> Ask:
        request = read_completion(body)
        _check_model(request, served)
        return completions.read_ask(request, served)

    def ask_chat(body: bytes) -> Ask:
        request = read_chat(body)
        _check_model(request, served)
        return chat.read_ask(request, served)

    @app.post("/v1/completions")
    async def complete(http: Request) -> Response:
        return await respond(http, await _read_ask(ask_completion, http), completions.WORDING)

    @app.post("/v1/chat/completions")
    async def converse(http: Request) -> Response:
        return await respond(http, await _read_ask(ask_chat, http), chat.WORDING)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        if name != served.name:
            raise _unknown_model(name, served)
        return card


def _add_service_routes(
    app: FastAPI,
    conductor: Conductor,
    metrics: Metrics,
    *,
    ready_once: Callable[[], bool] | None,
) -> None:
    was_ready = False

    @app.get("/healthz")
    async def alive() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    @app.get("/readyz")
    async def ready() -> PlainTextResponse:
        if conductor.is_draining:
            raise busy("not ready: draining", code="draining", retry_after_s=DRAIN_RETRY_S)
        nonlocal was_ready
        was_ready = was_ready or (ready_once is not None and ready_once())
        if not (conductor.ready if ready_once is None else was_ready):
            reason = "not ready: the worker is not connected yet"
            raise busy(reason, code="not_ready", retry_after_s=1)
        return PlainTextResponse("ready\n")

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)


async def _read_ask(ask: Callable[[bytes], Ask], http: Request) -> Ask:
    """What `ask` makes of the body; long ones are read in a thread, for running streams' sake."""
    body = await _read_body(http)
    return ask(body) if len(body) <= IN_LOOP_BYTES else await asyncio.to_thread(ask, body)


async def _read_body(http: Request) -> bytes:
    body = bytearray()
    async for piece in http.stream():
        body += piece
        if len(body) > BODY_LIMIT_BYTES:
            raise Refused(
                413, f"the body exceeds {BODY_LIMIT_BYTES} bytes; send less", code="body_too_large"
            )
    return bytes(body)


def _check_model(request: SamplingRequest, served: ServedModel) -> None:
    if request.model != served.name:
        raise _unknown_model(request.model, served)


def _unknown_model(name: str, served: ServedModel) -> Refused:
    return Refused(
        404,
        f"model {name!r} is not served here; this server has {served.name!r}",
        param="model",
        code="model_not_found",
    )
