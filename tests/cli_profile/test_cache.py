"""Cache files appear whole or not at all, one maker at a time."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from exegpt_cli.cache import Cache
from exegpt_planner.errors import Unavailable


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


def test_the_environment_names_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EXEGPT_CACHE", str(tmp_path / "mine"))
    assert Cache.of_user().root == tmp_path / "mine"
    monkeypatch.delenv("EXEGPT_CACHE")
    assert Cache.of_user().root.name == "exegpt"


def test_a_write_that_fails_keeps_what_was_there(cache: Cache) -> None:
    path = cache.folder("things") / "table.json"
    cache.write(path, b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(Unavailable, match=r"cannot write .*table.json.*ulimit"):
            cache.write(path, b"x" * 5000)
        with pytest.raises(Unavailable, match="cannot write"):
            cache.append(path, b"y" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["table.json"]


def test_a_folder_that_fails_to_build_leaves_nothing(cache: Cache) -> None:
    path = cache.folder("models") / "demo"

    def fail() -> None:
        with cache.building(path) as made:
            (made / "config.json").write_text("{}")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert os.listdir(path.parent) == []
    with cache.building(path) as made:
        (made / "config.json").write_text("{}")
        assert not path.exists()
    assert os.listdir(path) == ["config.json"]


def test_a_cache_that_cannot_be_made_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="EXEGPT_CACHE"):
        Cache(tmp_path / "file" / "below").folder("models")


def test_a_lock_is_held_across_processes(cache: Cache) -> None:
    path = cache.folder("models") / "demo"
    script = (
        "import sys; from pathlib import Path; from exegpt_cli.cache import Cache\n"
        "with Cache(Path(sys.argv[1])).locked(Path(sys.argv[2])):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", script, str(cache.root), str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        waited: list[str] = []

        def release() -> None:
            waited.append("waiting")
            assert other.stdin is not None
            other.stdin.close()

        with cache.locked(path, waiting=release):
            assert waited == ["waiting"]
