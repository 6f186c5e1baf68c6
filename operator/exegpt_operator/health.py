"""Whether the operator moves: that the process answers says nothing of its watches and of its work.

It is alive while the watches tell of the Lease, which someone renews all the time, and while looks and its other rounds
come to an end. The handler runs on the same event loop as all of it: where that does not turn, no answer comes at all.
An operator that waits for the Lease is as healthy as the one that holds it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web

from exegpt_operator.lease import RENEW_S

DEAF_AFTER = round(60 / RENEW_S)  # renewals of the Lease that no watch has told of
STUCK_S = 300.0  # in one look, of which every call has a limit of its own, far below


class Health:
    """What is known of the operator's own moves."""

    def __init__(
        self, queue_age_s: Callable[[], float], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._queue_age_s, self._clock = queue_age_s, clock
        self._version = ""  # of the Lease, as last read or written
        self._unheard = 0  # moves of the Lease since a watch told of one
        self._heard_s = clock()
        self._due_s: dict[str, float] = {}  # when a round is to have ended, by its name
        self._lacking = {
            "the lease": "not read yet",
            "the resources": "not listed yet",
            "the watches": "nothing heard yet",
        }

    def lease_is(self, version: str) -> None:
        """The Lease was read or written, by whomever it is held."""
        self._lacking.pop("the lease", None)
        self._unheard += version != self._version
        self._version = version

    def heard(self) -> None:
        """A watch has told of the Lease."""
        self._lacking.pop("the watches", None)
        self._unheard, self._heard_s = 0, self._clock()

    def listed(self) -> None:
        """All resources were listed and named once."""
        self._lacking.pop("the resources", None)

    def turned(self, name: str, *, again_s: float) -> None:
        """A round has ended, well or not, and the next begins after `again_s`."""
        self._due_s[name] = self._clock() + again_s + STUCK_S

    @property
    def watch_age_s(self) -> float:
        """Seconds since a watch told of the Lease."""
        return self._clock() - self._heard_s

    def problem(self) -> str:
        """What does not move; empty while all does."""
        if self._unheard > DEAF_AFTER:
            return f"the watches tell nothing: {self._unheard} renewals of the lease went unheard"
        if (age_s := self._queue_age_s()) > STUCK_S:
            return f"a look has not ended for {age_s:.0f} s"
        for name, due_s in self._due_s.items():
            if self._clock() > due_s:
                return f"{name} is stuck for {self._clock() - due_s + STUCK_S:.0f} s"
        return ""

    def lacking(self) -> str:
        """What is not there yet; empty when it is ready."""
        return "; ".join(f"{what}: {how}" for what, how in self._lacking.items())

    def app(self) -> web.Application:
        """/healthz and /readyz."""

        async def healthz(_request: web.Request) -> web.Response:
            return _answer(self.problem())

        async def readyz(_request: web.Request) -> web.Response:
            return _answer(self.problem() or self.lacking())

        app = web.Application()
        app.router.add_get("/healthz", healthz)
        app.router.add_get("/readyz", readyz)
        return app


def _answer(problem: str) -> web.Response:
    return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")
