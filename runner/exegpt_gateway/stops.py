"""Stop strings over text that arrives in pieces.

A text ends where a stop string first completes, however the text was cut; of those that complete there
the longest counts. What may be the beginning of one is held back. Knuth-Morris-Pratt: constant work
per character, whatever the stop strings.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopScanner:
    """Delivers text up to the first stop string."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(stops)  # characters of each stop that end the text so far
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that is certain to be no stop string, and whether one is complete."""
        for index, char in enumerate(text, start=len(self._held) + 1):
            self._advance(char)
            complete = [
                len(stop)
                for (stop, _), matched in zip(self._stops, self._matched, strict=True)
                if matched == len(stop)
            ]
            if complete:
                return (self._held + text)[: index - max(complete)], True
        buffer = self._held + text
        cut = len(buffer) - max(self._matched, default=0)
        self._held = buffer[cut:]
        return buffer[:cut], False

    def flush(self) -> str:
        """The text held back: it is the beginning of a stop string that did not come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> None:
        for index, (stop, borders) in enumerate(self._stops):
            matched = self._matched[index]
            while matched and stop[matched] != char:
                matched = borders[matched - 1]
            self._matched[index] = matched + 1 if stop[matched] == char else 0


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that is also its end."""
    borders = [0] * len(stop)
    for index in range(1, len(stop)):
        length = borders[index - 1]
        while length and stop[length] != stop[index]:
            length = borders[length - 1]
        borders[index] = length + 1 if stop[length] == stop[index] else 0
    return borders
