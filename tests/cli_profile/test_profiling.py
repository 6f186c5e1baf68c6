"""Profiles are measured once, continued when interrupted, grown when more is needed, and never half written."""

from __future__ import annotations

import math
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cli_profile_server import Server
from exegpt_cli import profiling
from exegpt_cli.cache import Cache
from exegpt_cli.profiling import (
    HELD_OUT_TIMINGS,
    ProfiledWorkers,
    ProfileTarget,
    cached_table,
    local_key,
    profile,
)
from exegpt_planner.errors import InvalidSpec, Unavailable
from exegpt_planner.profile_design import Coverage, design
from exegpt_planner.profile_table import ProfileTable

COVERAGE = Coverage(decode_queries=4, context=64, encode_tokens=64, encode_chunks=4, kv_tokens=256)


NUM_STEPS = 64


class Interrupted(Exception):
    pass


@pytest.fixture(autouse=True)
def _short_design(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "NUM_STEPS", NUM_STEPS)
    monkeypatch.setattr(profiling, "REPEAT_BELOW_S", math.inf)  # however busy the machine is


def _files(cache: Cache) -> set[str]:
    return {path.name for path in cache.root.rglob("*") if path.is_file()}


def _steps_file(cache: Cache) -> Path:
    (path,) = cache.root.rglob("steps.jsonl")
    return path


@contextmanager
def _file_size_limit(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def at(server: Server) -> ProfiledWorkers:
    return ProfiledWorkers(addresses=(server.address,))


def test_a_second_profile_measures_nothing(
    target: ProfileTarget, server: Server, cache: Cache
) -> None:
    said: list[str] = []
    first = profile(target, at(server), COVERAGE, cache, lambda *event: said.append(event[2]))
    assert set(server.measured) == set(range(NUM_STEPS))
    assert {"loading the model", "timing steps", "timing messages"} <= set(said)
    server.measured.clear()
    assert profile(target, at(server), COVERAGE, cache) == first
    assert server.measured == []
    smaller = replace(COVERAGE, decode_queries=2)
    assert cached_table(local_key(target.spec, "float32", 1), smaller, cache) == first
    _check_table(first)


def _check_table(table: ProfileTable) -> None:
    assert table.source == "measured"
    assert table.num_samples == NUM_STEPS
    assert table.covers(COVERAGE.largest)
    assert 0 < table.dispatch_s < 1
    assert 0 < table.step_overhead_s < 1
    assert table.error_p95 > 0
    assert table.spread > 0
    assert 1e-4 < table.kernel_s < 1


def test_an_interrupted_profile_continues_after_a_torn_line(
    target: ProfileTarget, server: Server, cache: Cache
) -> None:
    def stop_at(done: int, _total: int, what: str) -> None:
        if what == "timing steps" and done >= 32:
            raise Interrupted

    with pytest.raises(Interrupted):
        profile(target, at(server), COVERAGE, cache, stop_at)
    assert set(server.measured) == set(range(32))
    path = _steps_file(cache)
    lines = path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 32
    path.write_bytes(b"".join(lines[:31]) + lines[31][:40])
    server.measured.clear()
    table = profile(target, at(server), COVERAGE, cache)
    missing = list(range(31, NUM_STEPS))
    assert server.measured[: len(missing)] == missing  # before any step is measured again
    assert table.num_samples == NUM_STEPS


def test_measurements_of_a_step_lie_a_sweep_apart_and_outlast_an_interruption(
    target: ProfileTarget, server: Server, cache: Cache
) -> None:
    def stop_after_two_sweeps(_done: int, _total: int, what: str) -> None:
        if what.endswith("sweep 3"):
            raise Interrupted

    with pytest.raises(Interrupted):
        profile(target, at(server), COVERAGE, cache, stop_after_two_sweeps)
    assert server.measured[:NUM_STEPS] == list(range(NUM_STEPS))
    second = server.measured[NUM_STEPS:]
    assert sorted(second) == list(range(NUM_STEPS))
    held_out = [step.id for step in design(COVERAGE, seed=1, num_steps=NUM_STEPS) if step.held_out]
    assert second[: len(held_out)] == held_out
    server.measured.clear()
    profile(target, at(server), COVERAGE, cache)
    assert max(server.measured.count(step) for step in range(NUM_STEPS)) == HELD_OUT_TIMINGS - 2


def test_coverage_grows_by_doubling_and_keeps_the_samples(
    target: ProfileTarget, server: Server, cache: Cache
) -> None:
    profile(target, at(server), COVERAGE, cache)
    server.measured.clear()
    grown = profile(target, at(server), replace(COVERAGE, decode_queries=5), cache)
    assert grown.covers(replace(COVERAGE, decode_queries=8).largest)
    added = len(set(server.measured))  # the larger steps only
    assert 0 < added < NUM_STEPS / 2
    assert grown.num_samples == NUM_STEPS + added


def test_two_processes_share_one_measurement(
    target: ProfileTarget, server: Server, cache: Cache
) -> None:
    tables: list[ProfileTable] = []
    said: list[str] = []

    def run() -> None:
        tables.append(
            profile(target, at(server), COVERAGE, cache, lambda *event: said.append(event[2]))
        )

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tables[0] == tables[1]
    assert said.count("loading the model") == 1


def test_a_full_disk_is_named_and_leaves_whole_lines_only(
    target: ProfileTarget, server: Server, cache: Cache
) -> None:
    with _file_size_limit(24_000), pytest.raises(Unavailable) as caught:
        profile(target, at(server), COVERAGE, cache)
    assert str(_steps_file(cache)) in str(caught.value)
    assert "EXEGPT_CACHE" in str(caught.value)
    data = _steps_file(cache).read_bytes()
    assert data.endswith(b"\n")
    assert len(data) <= 24_000
    assert _files(cache) == {"coverage.json", "steps.jsonl", "table.json.lock"}


def test_a_damaged_record_is_named_with_the_remedy(
    target: ProfileTarget, server: Server, cache: Cache
) -> None:
    with _file_size_limit(24_000), pytest.raises(Unavailable):
        profile(target, at(server), COVERAGE, cache)
    _steps_file(cache).write_bytes(b"not json\n")
    with pytest.raises(Unavailable, match="Delete it"):
        profile(target, at(server), COVERAGE, cache)


def test_a_model_that_the_worker_refuses_is_an_invalid_input(
    target: ProfileTarget, server: Server, cache: Cache, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises((InvalidSpec, Unavailable), match="empty"):
        profile(replace(target, model_dir=tmp_path / "empty"), at(server), COVERAGE, cache)
