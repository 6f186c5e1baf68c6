"""The next token of each row, independent of which rows it is computed with.

Randomness is counter-based: the uniform of a token is a function of (seed, its position in the output) alone, so a
query gives the same tokens in any batch, and again after an eviction or a restart. Greedy rows cost one argmax over the
batch; only sampled rows pay for more. Probabilities are computed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_SEED_BITS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How a query's tokens are chosen and when it ends."""

    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0  # 1: all
    seed: int = 0
    max_tokens: int = 16  # output tokens in all
    min_tokens: int = 0  # end tokens are not sampled before this many
    ignore_eos: bool = False  # end tokens are sampled but do not end the query
    end_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        problems = [
            text
            for is_wrong, text in (
                (not 0 <= self.temperature < np.inf, f"temperature {self.temperature} is not >= 0"),
                (self.top_k < 0, f"top_k {self.top_k} is negative; 0 means all"),
                (not 0 < self.top_p <= 1, f"top_p {self.top_p} is not in (0, 1]"),
                (not 0 <= self.seed < 1 << _SEED_BITS, f"seed {self.seed} is not of 64 bits"),
                (self.max_tokens < 1, f"max_tokens {self.max_tokens} is not >= 1"),
                (self.min_tokens < 0, f"min_tokens {self.min_tokens} is negative"),
            )
            if is_wrong
        ]
        if problems:
            raise ValueError("; ".join(problems))


class SamplingRows:
    """The samplings of a batch's rows, as arrays; built when the batch's composition changes."""

    def __init__(self, samplings: Sequence[Sampling]) -> None:
        self.samplings = tuple(samplings)
        self._max_tokens = np.array([each.max_tokens for each in samplings], np.int64)
        self._sampled = [i for i, each in enumerate(samplings) if each.temperature > 0]
        self._min_tokens = np.array([each.min_tokens for each in samplings], np.int64)
        width = max((len(each.end_tokens) for each in samplings), default=0)
        self._ends = np.full((len(samplings), width), -1, np.int64)  # no token is -1
        self._suppressed = np.full((len(samplings), width), -1, np.int64)
        for row, each in enumerate(samplings):
            if not each.ignore_eos:
                self._ends[row, : len(each.end_tokens)] = each.end_tokens
            if each.min_tokens:
                self._suppressed[row, : len(each.end_tokens)] = each.end_tokens

    def sample(self, logits: Tensor, num_generated: Ints) -> Ints:
        """The next token of each row. logits: (n, V); num_generated: (n,), tokens the row's output has so far."""
        logits = self._suppress(logits, num_generated)
        # numpy's argmax is vectorised; torch's on a CPU is not (10x at V = 49152).
        exact = logits.float() if logits.dtype == torch.bfloat16 else logits
        tokens: Ints = exact.numpy().argmax(-1)
        for row in self._sampled:
            uniform = uniform_at(self.samplings[row].seed, int(num_generated[row]))
            tokens[row] = choose(exact[row], self.samplings[row], uniform)
        return tokens

    def hit_end(self, tokens: Ints) -> Bools:
        """Which of `tokens` (n,) end their query."""
        hits: Bools = (self._ends == tokens[:, None]).any(1)
        return hits

    def exhausted(self, num_generated: Ints) -> Bools:
        """Which rows have all the tokens they may have. num_generated: (n,)."""
        return num_generated >= self._max_tokens

    def _suppress(self, logits: Tensor, num_generated: Ints) -> Tensor:
        young = num_generated < self._min_tokens
        if not young.any():
            return logits
        rows, columns = np.nonzero(young[:, None] & (self._suppressed >= 0))
        tokens = self._suppressed[rows, columns]
        return logits.index_put(
            (torch.from_numpy(rows), torch.from_numpy(tokens)),
            torch.tensor(-torch.inf, dtype=logits.dtype),
        )


def uniform_at(seed: int, position: int) -> float:
    """The uniform in [0, 1) of the token at `position` of an output (53 bits of Philox keyed by the seed)."""
    bits = np.random.Philox(key=seed, counter=position).random_raw()
    return float(int(bits) >> 11) * 2.0**-53


def choose(logits: Tensor, sampling: Sampling, uniform: float) -> int:
    """The token at quantile `uniform` of the law that `sampling` makes of `logits` (V,)."""
    candidates = None
    if 0 < sampling.top_k < len(logits):
        logits, candidates = logits.topk(sampling.top_k)  # sorted
    elif sampling.top_p < 1:
        logits, candidates = logits.sort(descending=True, stable=True)
    scaled = logits.double()
    # The difference first: it is at most 0, so no temperature can make it overflow to nan.
    masses = ((scaled - scaled.max()) / sampling.temperature).exp().cumsum(0).numpy()
    if sampling.top_p < 1:  # the fewest tokens that reach top_p
        last = int(np.searchsorted(masses, sampling.top_p * masses[-1]))
        masses = masses[: last + 1]
    index = int(np.searchsorted(masses, uniform * masses[-1], side="right"))
    # Rounding may put the product at the very end; tokens of no mass are never chosen.
    index = min(index, int(np.searchsorted(masses, masses[-1])))
    return index if candidates is None else int(candidates[index])
