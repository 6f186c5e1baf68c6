"""Alive is what moves, not what answers."""

from __future__ import annotations

from aiohttp.test_utils import TestClient, TestServer

from exegpt_operator.health import DEAF_AFTER, STUCK_S, Health
from exegpt_operator.lease import RENEW_S


class Operator:
    """What its health is told, minute by minute."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.age_s = 0.0
        self.health = Health(lambda: self.age_s, clock=lambda: self.now_s)
        self.version = 0

    def renew(self, times: int = 1, *, heard: bool) -> None:
        for _ in range(times):
            self.now_s += RENEW_S
            self.version += 1
            self.health.lease_is(str(self.version))
            self.health.turned("the lease", again_s=RENEW_S)
            if heard:
                self.health.heard()


def test_ready_once_everything_is_listed_the_lease_is_known_and_the_watches_tell() -> None:
    operator = Operator()
    health = operator.health
    assert health.lacking() == (
        "the lease: not read yet; the resources: not listed yet; the watches: nothing heard yet"
    )
    operator.renew(heard=False)
    assert health.lacking() == "the resources: not listed yet; the watches: nothing heard yet"
    operator.renew(heard=True)
    assert health.lacking() == "the resources: not listed yet"
    health.listed()
    assert health.lacking() == ""
    assert health.problem() == ""


def test_dead_watches_are_known_after_a_minute_of_renewals() -> None:
    operator = Operator()
    operator.renew(100, heard=True)
    operator.renew(DEAF_AFTER, heard=False)
    assert operator.health.problem() == ""
    assert operator.health.watch_age_s == 60
    operator.renew(heard=False)
    assert "13 renewals of the lease went unheard" in operator.health.problem()
    operator.health.heard()
    assert operator.health.problem() == ""


def test_an_api_server_that_is_away_is_no_reason_to_start_anew() -> None:
    """Nothing is renewed and nothing heard; right after it the watches have time to come back."""
    operator = Operator()
    operator.renew(10, heard=True)
    for _ in range(1000):
        operator.now_s += RENEW_S
        operator.health.turned("the lease", again_s=RENEW_S)
        assert operator.health.problem() == ""
    operator.renew(DEAF_AFTER, heard=False)
    assert operator.health.problem() == ""


def test_who_waits_for_the_lease_hears_the_other_renew_it() -> None:
    operator = Operator()
    operator.health.listed()
    for _ in range(50):
        operator.now_s += RENEW_S
        operator.version += 1
        operator.health.heard()
        for _ in range(2):  # it reads more often than the other writes
            operator.health.lease_is(str(operator.version))
        assert operator.health.problem() == operator.health.lacking() == ""


def test_a_look_that_does_not_end_is_a_problem() -> None:
    operator = Operator()
    operator.age_s = STUCK_S
    assert operator.health.problem() == ""
    operator.age_s += 1
    assert operator.health.problem() == "a look has not ended for 301 s"


def test_a_round_that_does_not_end_is_a_problem() -> None:
    operator = Operator()
    operator.health.turned("the resync", again_s=60.0)
    operator.now_s = 60.0 + STUCK_S
    assert operator.health.problem() == ""
    operator.now_s += 1
    assert operator.health.problem() == "the resync is stuck for 301 s"


async def test_both_pages() -> None:
    operator = Operator()
    async with TestClient(TestServer(operator.health.app())) as client:

        async def asked(path: str) -> tuple[int, str]:
            async with client.get(path) as answer:
                return answer.status, await answer.text()

        assert await asked("/healthz") == (200, "ok\n")
        assert (await asked("/readyz"))[0] == 503
        operator.renew(heard=True)
        operator.health.listed()
        assert await asked("/readyz") == (200, "ok\n")
        operator.age_s = 1000.0
        assert await asked("/healthz") == (503, "a look has not ended for 1000 s\n")
        assert (await asked("/readyz"))[0] == 503
