from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest

from cli.manifests import SMALL
from cli.tables import table_up_to
from exegpt_cli.cache import Cache
from exegpt_cli.local import FIRST_QUERIES, Profiler, coverage_for, memory_budget, plan_on_profile
from exegpt_cli.placement import place
from exegpt_cli.profiling import keep_table
from exegpt_cli.wanted import Wanted
from exegpt_cli.workers import Workers
from exegpt_planner.bound import Bound
from exegpt_planner.errors import InfeasibleBound
from exegpt_planner.lengths import from_histogram, truncated_normal
from exegpt_planner.manifest import Deployment
from exegpt_planner.profile_design import Coverage
from exegpt_planner.profile_table import ProfileKey, ProfileTable
from exegpt_planner.workload import Workload
from planner.builders import MODEL

CHAT = Workload.independent(
    truncated_normal(64, 24, 128), truncated_normal(48, 24, 120), source="chat"
)


def wanted(bound_s: float, workload: Workload = CHAT) -> Wanted:
    return Wanted(
        deployment=Deployment.model_validate(SMALL),
        folder=Path("/nowhere"),
        model=MODEL,
        workload=workload,
        bound=Bound(seconds=bound_s),
        strategies=("RRA",),
    )


def asked_for(question: Wanted) -> list[int]:
    """The largest decodes of the profiles asked for on the way to the plan."""
    asked: list[int] = []

    def table_of(coverage: Coverage) -> ProfileTable:
        asked.append(coverage.decode_queries)
        return table_up_to(coverage)

    plan_on_profile(question, table_of)
    return asked


def test_a_tight_bound_needs_one_profile_and_a_loose_one_larger_ones() -> None:
    assert asked_for(wanted(0.6)) == [FIRST_QUERIES]
    loose = asked_for(wanted(60.0))
    assert loose == [FIRST_QUERIES, 4 * FIRST_QUERIES, 16 * FIRST_QUERIES]


def test_a_bound_that_nothing_meets_is_said_after_one_profile() -> None:
    with pytest.raises(InfeasibleBound, match=r"within 0\.01 s"):
        asked_for(wanted(0.01))


def test_whoever_waits_for_another_process_profile_is_told_and_gets_its_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache, question = Cache(tmp_path), wanted(0.6)
    small, large = coverage_for(CHAT, 512, 8), coverage_for(CHAT, 512, 64)
    fake = [sys.executable, str(Path(__file__).with_name("fake_worker.py"))]
    with Workers(place([0, 1]), lambda *_: fake) as workers, ThreadPoolExecutor() as threads:
        (worker,) = workers.described()
        key = ProfileKey(
            model_fingerprint=MODEL.fingerprint,
            device=worker.device,
            dtype=question.deployment.spec.model.dtype,
            threads=worker.threads,
            versions=dict(worker.versions),
        )
        keep_table(table_up_to(small, key), cache)
        (table,) = tmp_path.rglob("table.json")
        with filelock.FileLock(f"{table}.lock"):
            profiler = Profiler(question, cache, _workers=workers)
            waiting = threads.submit(profiler.table, large)
            said, deadline_s = "", time.monotonic() + 30
            while "another process measures this profile; waiting for it" not in said:
                assert time.monotonic() < deadline_s, said
                time.sleep(0.01)  # pytest offers no event
                said += capsys.readouterr().err
            keep_table(table_up_to(large, key), cache)
        assert waiting.result() == table_up_to(large, key)


def test_sizes_are_powers_of_two_so_that_a_load_with_probes_shares_the_profile() -> None:
    plain = coverage_for(CHAT, 8192)
    assert plain == coverage_for(CHAT.with_probes(0.2), 8192)
    for size in (plain.decode_queries, plain.context, plain.encode_tokens, plain.kv_tokens):
        assert size & (size - 1) == 0
    assert plain.context >= 128 + 120
    assert plain.encode_tokens >= 128
    assert coverage_for(CHAT, 8192, 128).holds(plain)


def test_a_prompt_of_the_longest_length_is_always_covered() -> None:
    inputs = from_histogram([8, 4000], [999, 1])
    rare = Workload.independent(inputs, truncated_normal(10, 4, 20), source="rare")
    coverage = coverage_for(rare, 8192, 1)
    assert coverage.encode_tokens >= rare.input.max
    assert coverage.kv_tokens >= rare.input.max + rare.output.max


def test_the_memory_budget_is_a_share_of_what_is_available_in_whole_grains() -> None:
    budget = memory_budget()
    assert 0 < budget.reserve_bytes < budget.device_bytes
    assert budget.device_bytes % (256 << 20) == 0


def test_several_workers_share_the_memory() -> None:
    alone, one_of_four = memory_budget(), memory_budget(4)
    assert one_of_four.device_bytes <= alone.device_bytes / 4 + (256 << 20)
    assert one_of_four.device_bytes % (256 << 20) == 0
