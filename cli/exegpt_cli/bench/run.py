"""Runs one load against one endpoint; used by `exegpt bench` and `exegpt demo`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import httpx
import numpy as np

from exegpt_cli.bench.client import Answer, Target, complete, http_client
from exegpt_cli.bench.load import Arrivals, Limits, Load, Saturation
from exegpt_cli.bench.queries import Query, draw
from exegpt_cli.output import Report
from exegpt_planner.errors import Unavailable
from exegpt_planner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """A load that is ready to run."""

    target: Target
    metrics_url: str | None  # of exegpt's own server
    workload: Workload
    vocab: int
    seed: int
    in_flight: int
    rate_per_s: float | None  # None: saturation
    warm_up_s: float
    limits: Limits  # the warm-up included

    @property
    def arrivals(self) -> str:
        """In words."""
        if self.rate_per_s is None:
            return f"saturated, {self.in_flight} in flight"
        return f"Poisson, {self.rate_per_s:g} per second"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A load that ran, and the server's /metrics at the beginning and the end of its window."""

    load: Load
    before: str | None
    after: str | None


async def run_load(plan: LoadPlan, report: Report) -> Outcome:
    """Check that the endpoint answers, then load it; `report` hears the seconds passed."""
    stopped = asyncio.Event()
    async with http_client() as http:
        await _check(http, plan)
        tasks = [
            asyncio.create_task(_tick(report, plan.limits.duration_s)),
            before := asyncio.create_task(_scrape_after(http, plan, plan.warm_up_s)),
            after := asyncio.create_task(_scrape_when(http, plan, stopped)),
        ]
        try:
            load = await _generator(http, plan).run(plan.limits, stopped.set)
            begun = load.stopped_s - load.started_s > plan.warm_up_s
            return Outcome(load=load, before=await before if begun else None, after=await after)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _generator(http: httpx.AsyncClient, plan: LoadPlan) -> Saturation | Arrivals:
    queries = draw(plan.workload, vocab=plan.vocab, seed=plan.seed)

    async def send(query: Query) -> Answer:
        return await complete(http, plan.target, query, time.monotonic)

    if plan.rate_per_s is None:
        return Saturation(send, queries, in_flight=plan.in_flight, now=time.monotonic)
    rng = np.random.default_rng((plan.seed, 1))  # arrivals are drawn apart from lengths
    return Arrivals(send, queries, rate_per_s=plan.rate_per_s, rng=rng, now=time.monotonic)


async def _check(http: httpx.AsyncClient, plan: LoadPlan) -> None:
    """One short query before the load, so that a wrong address or model is one clear error."""
    probe = Query(index=-1, prompt=(plan.vocab - 1,), output_tokens=1)
    answer = await complete(http, plan.target, probe, time.monotonic)
    if answer.error is not None:
        raise Unavailable(
            f"{plan.target.url} does not complete a prompt of model {plan.target.model!r}: "
            f"{answer.error}. Check --url (with its /v1), --model and that the server runs."
        )


async def _tick(report: Report, total_s: float) -> None:
    started = time.monotonic()
    while (passed := time.monotonic() - started) < total_s:
        report(passed, total_s)
        await asyncio.sleep(0.5)
    report(total_s, total_s)


async def _scrape_after(http: httpx.AsyncClient, plan: LoadPlan, delay_s: float) -> str | None:
    await asyncio.sleep(delay_s)
    return await _scrape(http, plan)


async def _scrape_when(http: httpx.AsyncClient, plan: LoadPlan, event: asyncio.Event) -> str | None:
    await event.wait()
    return await _scrape(http, plan)


async def _scrape(http: httpx.AsyncClient, plan: LoadPlan) -> str | None:
    if plan.metrics_url is None:
        return None
    try:
        response = await http.get(plan.metrics_url)
    except httpx.HTTPError:
        return None  # the report then says nothing of the cycle; the load itself is unharmed
    return response.text
