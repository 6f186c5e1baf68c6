from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from exegpt_gateway.stops import StopScanner

LETTERS = st.text(alphabet="ab", min_size=1, max_size=6)


def oracle(text: str, stops: list[str]) -> tuple[str, bool]:
    """The text before the first completed stop, by looking at every beginning of the text."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))], True
    return text, False


def scan(pieces: list[str], stops: list[str]) -> tuple[str, bool]:
    scanner = StopScanner(stops)
    delivered = ""
    for piece in pieces:
        text, is_stopped = scanner.push(piece)
        delivered += text
        if is_stopped:
            return delivered, True
    return delivered + scanner.flush(), False


@given(pieces=st.lists(LETTERS, max_size=8), stops=st.lists(LETTERS, max_size=4))
def test_however_the_text_is_cut_it_ends_at_the_first_completed_stop(
    pieces: list[str], stops: list[str]
) -> None:
    assert scan(pieces, stops) == oracle("".join(pieces), stops)


@given(pieces=st.lists(LETTERS, max_size=8), stops=st.lists(LETTERS, min_size=1, max_size=4))
def test_no_beginning_of_a_stop_leaks_and_nothing_else_is_held(
    pieces: list[str], stops: list[str]
) -> None:
    scanner = StopScanner(stops)
    seen = delivered = ""
    for piece in pieces:
        seen += piece
        text, is_stopped = scanner.push(piece)
        delivered += text
        if is_stopped:
            return
        held = seen[len(delivered) :]
        starts = [
            size
            for size in range(len(seen) + 1)
            if any(stop.startswith(seen[len(seen) - size :]) for stop in stops)
        ]
        assert len(held) == max(starts)


def test_a_stop_over_three_pieces_leaves_only_the_text_before() -> None:
    scanner = StopScanner(["</answer>"])
    assert scanner.push("42 </an") == ("42 ", False)
    assert scanner.push("swe") == ("", False)
    assert scanner.push("r> more") == ("", True)


def test_a_false_start_is_delivered() -> None:
    scanner = StopScanner(["END"])
    assert scanner.push("EN") == ("", False)
    assert scanner.push("EMY EN") == ("ENEMY ", False)
    assert scanner.flush() == "EN"
