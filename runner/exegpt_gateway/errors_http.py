"""Every failure as OpenAI words it: `{"error": {"message", "type", "param", "code"}}`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from exegpt_gateway.sse import ClientGone
from exegpt_planner.errors import ExeGPTError, InvalidSpec


class Refused(Exception):
    """A request that is answered with an error body and this status."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.headers = headers


def error_body(
    status: int, message: str, *, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """The JSON body of an error answer."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def refuse(error: ExeGPTError) -> Refused:
    """How an error of ours is answered."""
    match error:
        case InvalidSpec(problems=[first, *_]):
            param, colon, _ = first.partition(":")
            is_path = colon and " " not in param
            return Refused(400, "; ".join(error.problems), param=param if is_path else None)
        case _:
            return Refused(503, str(error), code="unavailable")


def busy(message: str, *, code: str, retry_after_s: float) -> Refused:
    """503 with the time after which a retry makes sense."""
    seconds = max(1, math.ceil(retry_after_s))
    return Refused(503, message, code=code, headers={"Retry-After": str(seconds)})


def install(app: FastAPI) -> None:
    """Answers all of the app's failures in OpenAI's form."""
    app.add_exception_handler(Refused, _on_refused)
    app.add_exception_handler(ExeGPTError, _on_exegpt_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientGone, _on_client_gone)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_exception_handler(Exception, _on_bug)


def _answer(error: Refused) -> JSONResponse:
    body = error_body(error.status, str(error), param=error.param, code=error.code)
    return JSONResponse(body, status_code=error.status, headers=error.headers)


async def _on_refused(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, Refused)
    return _answer(error)


async def _on_exegpt_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ExeGPTError)
    return _answer(refuse(error))


async def _on_http_exception(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    place = f"{request.method} {request.url.path}"
    match error.status_code:
        case 404:
            message = f"{place}: no such route; see /v1/completions and /v1/chat/completions"
        case 405:
            allowed = (error.headers or {}).get("Allow", "another method")
            message = f"{place}: method not allowed; use {allowed}"
        case _:
            message = f"{place}: {error.detail}"
    return _answer(Refused(error.status_code, message, headers=error.headers))


async def _on_client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it; nginx's number, for access logs


async def _on_bug(_request: Request, _error: Exception) -> JSONResponse:
    # starlette raises it again after this answer, so the server logs it with its stack
    return _answer(
        Refused(500, "internal error; the server's log has the details", code="internal")
    )
