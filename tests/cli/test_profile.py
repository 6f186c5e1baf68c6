"""Measuring anew: nothing of the old profile is left, and nobody ever sees a part of it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import filelock
import pytest

from cli.manifests import run_cli, write_manifest
from cli.small_model import write_small_model
from cli.tables import KEY, LARGE, table_up_to
from exegpt_cli import local, profiling
from exegpt_cli.cache import Cache
from exegpt_cli.profiling import cached_table, forget, keep_table

OTHER = KEY.model_copy(update={"threads": 7})
NUM_STEPS = 64  # few, but enough to fit


class Crash(BaseException):
    pass


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    """A cache that holds a profile under KEY, with its samples, and the table of another."""
    cache = Cache(tmp_path / "cache")
    keep_table(table_up_to(LARGE, KEY), cache)
    folder = _file(cache, "table.json").parent
    (folder / "coverage.json").write_text("{}")
    (folder / "steps.jsonl").write_text("{}\n")
    keep_table(table_up_to(LARGE, OTHER), cache)
    return cache


def _file(cache: Cache, name: str) -> Path:
    (path,) = cache.root.rglob(name)
    return path


def never() -> None:
    pytest.fail("nobody else is measuring")


def test_what_is_forgotten_is_gone_and_other_profiles_stay(cache: Cache) -> None:
    folder = _file(cache, "steps.jsonl").parent
    forget(KEY, cache, waiting=never)
    assert os.listdir(folder) == ["table.json.lock"]
    assert cached_table(KEY, LARGE, cache) is None
    assert cached_table(OTHER, LARGE, cache) == table_up_to(LARGE, OTHER)
    forget(KEY, cache, waiting=never)  # nothing is left to forget


@pytest.mark.parametrize("num_removed", [0, 1, 2])
def test_a_crash_never_leaves_a_table_or_a_coverage_without_its_samples(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, num_removed: int
) -> None:
    folder = _file(cache, "steps.jsonl").parent
    removed: list[Path] = []

    def unlink(path: Path, missing_ok: bool = False) -> None:
        if len(removed) == num_removed:
            raise Crash
        removed.append(path)
        os.unlink(path)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        with pytest.raises(Crash):
            forget(KEY, cache, waiting=never)
    left = set(os.listdir(folder)) - {"table.json.lock"}
    order = ["table.json", "coverage.json", "steps.jsonl"]
    assert left == set(order[num_removed:])


def test_a_profile_that_is_being_measured_is_forgotten_when_it_is_done(cache: Cache) -> None:
    told = threading.Event()
    with ThreadPoolExecutor() as threads:
        lock = _file(cache, "steps.jsonl").with_name("table.json.lock")
        with filelock.FileLock(lock):
            forgetting = threads.submit(forget, KEY, cache, waiting=told.set)
            assert told.wait(timeout=30)
            assert cached_table(KEY, LARGE, cache) is not None
        forgetting.result()
    assert cached_table(KEY, LARGE, cache) is None


@pytest.fixture
def _own_cores() -> Iterator[None]:
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)  # a command leaves the worker's to it


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.usefixtures("_own_cores")
def test_profile_measures_once_and_anew_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = Cache(tmp_path / "cache")
    monkeypatch.setenv("EXEGPT_CACHE", str(cache.root))
    monkeypatch.setattr(profiling, "NUM_STEPS", NUM_STEPS)
    monkeypatch.setattr(local, "GROWTHS", (1,))  # whatever the bound would allow
    model = write_small_model(tmp_path / "model")
    file = write_manifest(tmp_path, model, model__dtype="float32")

    def steps(*arguments: str) -> set[bytes]:
        assert run_cli(monkeypatch, "profile", "-f", str(file), "-o", "json", *arguments) == 0
        num_samples = json.loads(capsys.readouterr().out)["num_samples"]
        lines = _file(cache, "steps.jsonl").read_bytes().splitlines()  # one a measurement
        assert len({json.loads(line)["id"] for line in lines}) == num_samples
        return set(lines)

    first = steps()
    assert steps() == first
    assert not steps("--again") & first
