"""The user's cache: profiles and converted models, shared by every exegpt process of this machine.

Files appear whole or not at all (written beside their place, then renamed), and whoever makes one holds a lock, so
that two servers share what one of them made. Trouble with the disk is `Unavailable`, with the path and the remedy.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import filelock
import platformdirs

from exegpt_planner.errors import Unavailable

VARIABLE = "EXEGPT_CACHE"


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache folder, made when something is first written."""

    root: Path

    @classmethod
    def of_user(cls) -> Cache:
        """The folder named by EXEGPT_CACHE, else the usual one of this user."""
        named = os.environ.get(VARIABLE)
        return cls(Path(named).expanduser() if named else platformdirs.user_cache_path("exegpt"))

    def folder(self, *parts: str) -> Path:
        """A folder of the cache, made if need be."""
        path = self.root.joinpath(*parts)
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
        return path

    def write(self, path: Path, data: bytes) -> None:
        """Puts a whole file in place of what was at `path`."""
        with writing(path):
            descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(name, path)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(name)
                raise

    def append(self, path: Path, lines: bytes) -> None:
        """Adds lines to `path`, all or none; only a crash may tear the last one, and readers skip it."""
        with writing(path):
            size = path.stat().st_size if path.exists() else 0
            try:
                with path.open("ab") as file:
                    file.write(lines + b"\n")
            except OSError:
                if path.exists():
                    os.truncate(path, size)
                raise

    @contextmanager
    def building(self, path: Path) -> Iterator[Path]:
        """An empty folder beside `path` that takes its place when the block ends well."""
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            made = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
            try:
                yield made
                made.chmod(0o755)  # mkdtemp's folder is for its owner alone
                os.replace(made, path)
            except BaseException:
                shutil.rmtree(made, ignore_errors=True)
                raise

    @contextmanager
    def locked(self, path: Path, *, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Holds the lock of `path`; calls `waiting` once if another process holds it."""
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = filelock.FileLock(path.parent / f"{path.name}.lock")
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                if waiting is not None:
                    waiting()
                lock.acquire()
        try:
            yield
        finally:
            lock.release()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns trouble with writing `path` into `Unavailable` with the remedy."""
    try:
        yield
    except OSError as error:
        remedy = {
            errno.ENOSPC: "Free space on this disk",
            errno.EDQUOT: "Free space within your quota",
            errno.EFBIG: "Raise the limit on file sizes (ulimit -f)",
            errno.EACCES: "Grant write permission there",
            errno.EROFS: "It is on a read-only file system",
        }.get(error.errno or 0, "Check the path")
        raise Unavailable(
            f"cannot write {path}: {error.strerror or error}. "
            f"{remedy}, or set {VARIABLE} to a folder elsewhere."
        ) from error
