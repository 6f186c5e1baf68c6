"""`exegpt update` against a gateway in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from cli.tables import LARGE, promise, table_up_to
from conductors import build_conductor
from exegpt_cli.foresee import foresee
from exegpt_cli.output import Format
from exegpt_cli.update import Update, changed, run_update
from exegpt_cli.update_options import UpdateOptions
from exegpt_gateway.control import listening
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.steering import Steering
from exegpt_planner.bound import Bound
from exegpt_planner.errors import ExeGPTError, IncompleteProfile, InvalidSpec, Unavailable
from exegpt_planner.lengths import truncated_normal
from exegpt_planner.memory import MemoryBudget
from exegpt_planner.plan import Plan, make_plan
from exegpt_planner.schedule import CraSchedule, RraSchedule, WaaSchedule
from exegpt_planner.simulator import simulate
from exegpt_planner.workload import Workload
from fake_worker import FakeWorker
from planner.builders import MODEL

TABLE = table_up_to(LARGE)
WORKLOAD = Workload.independent(
    truncated_normal(32, 15, 64), truncated_normal(24, 12, 60), source="test"
)


def planned(strategy: str = "RRA", bound_s: float = 0.4) -> Plan:
    return make_plan(
        table=TABLE,
        model=MODEL,
        workload=WORKLOAD,
        bound=Bound(seconds=bound_s),
        memory=MemoryBudget(device_bytes=1 << 28),
        strategies=[strategy],
    )


@asynccontextmanager
async def gateway(folder: Path, token: str | None = None) -> AsyncIterator[Steering]:
    """Serves a plan, and is steered at folder/control.sock."""
    worker = FakeWorker(folder / "worker.sock", kv_tokens=1 << 30)
    await worker.start()
    plan = planned()
    conductor = build_conductor(
        worker, plan.schedule, metrics=Metrics(CollectorRegistry(), promise())
    )
    steering = Steering(
        conductor,
        plan,
        model_fingerprint="f00d",
        foresee=lambda wanted, _: foresee(wanted, TABLE, WORKLOAD),
    )
    async with listening(steering, f"unix://{folder}/control.sock", token=token):
        yield steering
    await worker.kill()


def options(folder: Path, **given: Any) -> UpdateOptions:
    return UpdateOptions(control=f"unix://{folder}/control.sock", **given)


async def updated(
    capsys: pytest.CaptureFixture[str], given: UpdateOptions, output: Format = Format.JSON
) -> str:
    capsys.readouterr()
    await asyncio.to_thread(run_update, given, output=output)
    return capsys.readouterr().out


async def test_knobs_change_the_schedule_in_force_and_its_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway(tmp_path) as steering:
        before = steering.plan.schedule
        assert isinstance(before, RraSchedule)
        said = await updated(capsys, options(tmp_path, encode_interval=8, encode_batch=6))
        found = Update.model_validate_json(said)
        assert (found.revision, found.previous) == (2, before)
        assert steering.plan.schedule == found.schedule
        assert isinstance(found.schedule, RraSchedule)
        assert (found.schedule.encode_batch, found.schedule.encode_interval) == (6, 8)
        assert found.schedule.adjustment is not None  # as a planned one has
        assert found.prediction == simulate(found.schedule, TABLE, WORKLOAD)
        text = await updated(
            capsys, options(tmp_path, strategy="CRA", pool=5, chunk_tokens=64), Format.TEXT
        )
        assert steering.plan.schedule == CraSchedule(pool=5, chunk_tokens=64)
    assert "In force  CRA: hold 5 queries, encode at most 64 tokens" in text
    assert "revision 3" in text
    assert "Before    RRA: encode 6 queries, then 8 decode iterations" in text


async def test_a_plan_from_a_file_is_taken_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = planned("CRA", bound_s=0.3)
    file = tmp_path / "plan.json"
    file.write_text(plan.model_dump_json())
    async with gateway(tmp_path) as steering:
        found = Update.model_validate_json(await updated(capsys, options(tmp_path, plan=file)))
        assert steering.plan == plan
    assert found.schedule == plan.schedule
    assert found.prediction == plan.prediction  # made anew, and the same


async def test_refusals_come_as_errors_with_their_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with gateway(tmp_path) as steering:
        for given, error, said in (
            ({"encode_batch": 10_000}, IncompleteProfile, "goes beyond the profile"),
            ({"strategy": "WAA", "encode_batch": 2, "pool": 8, "encoders": 1, "decoders": 1},
             InvalidSpec, "WAA for 2 workers, but there are 1"),
            ({"encode_batch": 200, "encode_interval": 40}, InvalidSpec, "the bound is 0.4 s"),
            ({"plan": tmp_path / "no.json"}, Unavailable, "Check the path"),
            ({}, InvalidSpec, "either --plan FILE or knobs"),
        ):  # fmt: skip
            with pytest.raises(error, match=said):
                await updated(capsys, options(tmp_path, **given))
        assert steering.revision == 1


async def test_the_token_goes_along(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    async with gateway(tmp_path, token="secret"):
        with pytest.raises(ExeGPTError, match="UNAUTHENTICATED"):
            await updated(capsys, options(tmp_path, encode_interval=8))
        said = await updated(capsys, options(tmp_path, encode_batch=4, token=file))
    assert json.loads(said)["revision"] == 2


def test_without_a_gateway_it_says_what_to_check(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="Check that exegpt serve runs with --control"):
        run_update(options(tmp_path, encode_interval=8), output=Format.JSON)


RRA = RraSchedule(encode_batch=4, encode_interval=9, units=2)


@pytest.mark.parametrize(
    ("schedule", "given", "found"),
    [
        (RRA, {"encode_interval": 5}, RRA.model_copy(update={"encode_interval": 5})),
        (RRA, {"strategy": "CRA", "pool": 7, "chunk_tokens": 32},
         CraSchedule(pool=7, chunk_tokens=32, units=2)),
        (CraSchedule(pool=7, chunk_tokens=32, units=2), {"pool": 9},
         CraSchedule(pool=9, chunk_tokens=32, units=2)),
        (RRA, {"strategy": "WAA", "encoders": 1, "decoders": 1, "encode_batch": 3, "pool": 9},
         WaaSchedule(encoders=1, decoders=1, encode_batch=3, pool=9)),
    ],
)  # fmt: skip
def test_knobs_replace_those_of_the_schedule(schedule: Any, given: Any, found: Any) -> None:
    change = changed(schedule, UpdateOptions(control="x", **given), num_workers=2)
    assert type(found).model_validate(change) == found


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pool": 4}, "pool is no knob of RRA; it has encode_batch, encode_interval"),
        ({"strategy": "CRA", "pool": 4}, "CRA also needs chunk_tokens"),
        ({"strategy": "FAST"}, "'FAST' is not one of RRA, CRA, WAA"),
    ],
)
def test_knobs_that_do_not_fit_are_named(given: Any, said: str) -> None:
    with pytest.raises(InvalidSpec, match=said):
        changed(RRA, UpdateOptions(control="x", **given), num_workers=1)
