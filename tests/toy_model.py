"""The model that fake workers run: its next token is a function of all tokens before it."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np


def next_token(tokens: Sequence[int], vocab: int = 256) -> int:
    """The toy model, greedy."""
    return zlib.crc32(np.asarray(tokens, np.uint32).tobytes()) % vocab


def answer(prompt: Sequence[int], num: int, *, end_tokens: Sequence[int] = ()) -> list[int]:
    """What a query must get back: `num` tokens, fewer if an end token comes first."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + num:
        tokens.append(next_token(tokens))
        if tokens[-1] in end_tokens:
            break
    return tokens[len(prompt) :]
