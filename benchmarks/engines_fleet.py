"""The peers' servers together: started at once, found by name, one of them anew for each level, all ended at last."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from engines_peers import PEERS, Room
from engines_serving import Server
from engines_tuning import Tuned
from exegpt_cli.bench.client import Target
from exegpt_cli.output import say
from exegpt_planner.errors import Unavailable
from peers import PeerUnavailable


class Fleet:
    """A context manager; why a peer could not be had is in its row."""

    def __init__(
        self, names: Sequence[str], room: Room, logs: Path, tuned: dict[str, Tuned]
    ) -> None:
        self._names, self._room, self._logs, self._tuned = names, room, logs, tuned
        self._servers: dict[str, Server] = {}
        self._slots: dict[str, int] = {}  # of those that are started for a level

    def __enter__(self) -> Self:
        try:
            for name in self._names:
                with noted(self._tuned[name]):
                    say(f"starting {PEERS[name].title} ...")
                    self._start(name, self._room)
            for name, server in self._servers.items():
                with noted(self._tuned[name]):
                    server.await_ready()
        except BaseException:  # whatever happens, no server stays; and it goes on
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers.values():
            server.end()

    @property
    def running(self) -> Iterator[str]:
        """Those that can be loaded."""
        yield from (name for name in self._servers if self._tuned[name].problem is None)

    def target(self, name: str, in_flight: int) -> Target:
        """Where to load `name` with so many queries in flight."""
        if PEERS[name].slots_are_level and self._slots.get(name) != in_flight:
            self._servers[name].end()
            self._start(name, replace(self._room, queries=in_flight))
            self._servers[name].await_ready()
            self._slots[name] = in_flight
        return self._servers[name].target

    def _start(self, name: str, room: Room) -> None:
        command = PEERS[name].command(room)
        server = Server(command, room.placement, self._logs / f"{name}.log")
        self._servers[name] = server
        server.start()


@contextmanager
def noted(tuned: Tuned) -> Iterator[None]:
    """What keeps an engine from going on, kept for its row."""
    try:
        yield
    except (PeerUnavailable, Unavailable) as error:
        tuned.problem = str(error)
        say(f"{tuned.engine}: {error}")
