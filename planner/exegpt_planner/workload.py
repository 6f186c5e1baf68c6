"""The joint law of a service's input and output lengths, in the form planning needs.

Planning sees inputs only through E[I | L = k] and E[I**2 | L = k]: a translation's inputs and outputs correlate, and
the KV that a pool holds depends on E[I * L]. Constant under independence, from the pairs themselves for a trace. Probes
are extra answers of the percentile's length, mixed in so that the promise about them can be measured in little time.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from exegpt_planner.errors import InvalidSpec, Unavailable
from exegpt_planner.lengths import (
    LengthLaw,
    empirical,
    from_histogram,
    mixture,
    point,
    truncated_normal,
)
from exegpt_planner.manifest import LengthSpec, WorkloadSpec
from exegpt_planner.truncation import LONGEST

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TRACE_HEADER = ["input_tokens", "output_tokens"]
MAX_TRACE_PROBLEMS = 10  # listed one by one; a file of the wrong kind would fill the screen


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Input and output lengths, tokens. Arrays are indexed by output length k = 0..output.max.

    `input_mean[k]` and `input_square[k]` are E[I | L = k] and E[I**2 | L = k]; under independence they are constant.
    Entries where P(L = k) = 0 are the overall means.
    """

    input: LengthLaw
    output: LengthLaw
    input_mean: Floats
    input_square: Floats
    source: str  # in words, e.g. "truncated normal", "trace of 7473 requests", "prior"
    pairs: Ints | None = None  # (n, 2), a trace's requests, which samples are drawn from
    probe_share: float = 0.0  # of requests that are probes
    probe_length: int = 0  # output tokens of a probe
    delay: int = 0  # tokens in `output` that are none: see `delayed`

    @classmethod
    def independent(cls, inputs: LengthLaw, outputs: LengthLaw, *, source: str) -> Self:
        """Lengths that tell nothing about each other."""
        return cls(
            input=inputs,
            output=outputs,
            input_mean=np.full(outputs.max + 1, inputs.mean),
            input_square=np.full(outputs.max + 1, inputs.square),
            source=source,
        )

    @classmethod
    def from_trace(cls, pairs: Sequence[tuple[int, int]] | Ints) -> Self:
        """The law of one of these (input, output) pairs, drawn at random."""
        array = np.asarray(pairs)
        if array.ndim != 2 or array.shape[1] != 2:
            raise InvalidSpec("trace", ["needs pairs of input and output tokens, at least one"])
        inputs, outputs = array.T
        input_law, output_law = empirical(inputs), empirical(outputs)
        counts = np.bincount(outputs)
        seen = counts > 0

        def given_output(values: Floats) -> Floats:
            sums = np.bincount(outputs, weights=values)
            return np.where(seen, sums / np.maximum(counts, 1), values.mean())

        return cls(
            input=input_law,
            output=output_law,
            input_mean=given_output(inputs.astype(np.float64)),
            input_square=given_output(inputs.astype(np.float64) ** 2),
            source=f"trace of {len(array)} requests",
            pairs=array.astype(np.int64),
        )

    @classmethod
    def prior(cls, context: int) -> Self:
        """What is assumed of a service without history, within `context` tokens a request.

        The longest of the ExeGPT paper's five tasks (C2, conversational: inputs of 512 tokens on average and 1,024 at
        most, outputs of 256 and 640), shrunk in proportion where the context is shorter. It errs on the long side: the
        other tasks' answers are shorter, so a plan for the prior keeps its bound for them, at the price of throughput
        until lengths have been observed.
        """
        if context < 2:
            raise InvalidSpec("context", [f"{context} tokens hold no input and output"])
        shrink = min(1.0, context / (1024 + 640))
        longest_input, longest_output = max(1, int(1024 * shrink)), max(1, int(640 * shrink))
        return cls.independent(
            truncated_normal(longest_input / 2, longest_input * 252 / 1024, longest_input),
            truncated_normal(longest_output * 0.4, longest_output * 134 / 640, longest_output),
            source="prior",
        )

    @property
    def s99(self) -> int:
        """The 99th percentile of output lengths, tokens."""
        return self.percentile_length(99)

    @property
    def input_output(self) -> float:
        """E[I * L]."""
        return float((np.arange(len(self.output.pmf)) * self.output.pmf) @ self.input_mean)

    def percentile_length(self, percentile: float) -> int:
        """The smallest output length that `percentile` % of the answers do not exceed."""
        return self.output.quantile(percentile / 100)

    def delayed(self) -> Workload:
        """The same for a model whose encode samples nothing, as T5's: an answer of L tokens takes L decode iterations.

        All laws count an answer's first token as the encode's, so here every answer is one token longer.
        """
        return replace(
            self,
            output=LengthLaw(pmf=np.append(0.0, self.output.pmf)),
            input_mean=np.append(self.input.mean, self.input_mean),
            input_square=np.append(self.input.square, self.input_square),
            delay=1,
        )

    def with_probes(self, share: float = 0.2, *, percentile: float = 99) -> Workload:
        """This workload with a `share` of extra answers of the percentile's length, their inputs drawn at random.

        The percentile's length stays what it was: its mass grows where it lies.
        """
        if not 0 < share < 1:
            raise InvalidSpec("probes", [f"share must lie between 0 and 1, not {share:g}"])
        if self.probe_share:
            raise InvalidSpec("probes", [f"the workload already has {self.probe_share:.0%} probes"])
        length = self.percentile_length(percentile)
        output = mixture(self.output, point(length), share)
        own = (1 - share) * self.output.pmf[length] / output.pmf[length]

        def mixed(values: Floats, overall: float) -> Floats:
            values = values.copy()
            values[length] = own * values[length] + (1 - own) * overall
            return values

        return replace(
            self,
            output=output,
            input_mean=mixed(self.input_mean, self.input.mean),
            input_square=mixed(self.input_square, self.input.square),
            source=f"{self.source}, with {share:.0%} probes of {length} tokens",
            probe_share=share,
            probe_length=length,
        )

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Ints, Ints]:
        """Input and output lengths of `n` independent requests, tokens."""
        if self.pairs is None:
            return self.input.sample(rng, n), self.output.sample(rng, n)
        drawn = self.pairs[rng.integers(len(self.pairs), size=n)]
        is_probe = rng.random(n) < self.probe_share
        # A probe's input is that of another request, so it tells nothing about the probe's length.
        return drawn[:, 0], np.where(is_probe, self.probe_length, drawn[:, 1])


def read_workload(spec: WorkloadSpec | None, model_context: int) -> Workload:
    """The workload that a manifest describes, the prior where it says nothing; every request fits the context."""
    if spec is None:
        return Workload.prior(model_context)
    if spec.trace is not None:
        workload = Workload.from_trace(read_trace(Path(spec.trace)))
    else:
        assert spec.input is not None, spec  # WorkloadSpec checks both
        assert spec.output is not None, spec
        workload = Workload.independent(
            _law(spec.input), _law(spec.output), source=_source(spec.input, spec.output)
        )
    longest_input, longest_output = workload.input.max, workload.output.max
    if longest_input + longest_output > model_context:
        raise InvalidSpec(
            "workload",
            [
                f"the longest input ({longest_input} tokens) and the longest output ({longest_output}) make "
                f"{longest_input + longest_output}, more than the model's context of {model_context}. "
                "Lower their max, drop such requests from the trace or histogram, or serve a model of longer context"
            ],
        )
    return workload


def read_trace(path: Path) -> Ints:
    """The (input_tokens, output_tokens) pairs of a CSV file with that header, an array (n, 2)."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise Unavailable(f"cannot read trace {path}: {error.strerror}. Check the path.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidSpec(str(path), [f"not a CSV file: {error}"]) from None
    header = [cell.strip() for cell in rows[0]] if rows else []
    if header != TRACE_HEADER:
        raise InvalidSpec(
            str(path), [f"line 1: expected {','.join(TRACE_HEADER)}, found {','.join(header)!r}"]
        )
    numbered = [(number, row) for number, row in enumerate(rows[1:], start=2) if row]
    problems = [problem for number, row in numbered if (problem := _row_problem(number, row))]
    if not numbered:
        problems = ["holds no requests, only the header"]
    if problems:
        left = len(problems) - MAX_TRACE_PROBLEMS
        more = [f"and {left} more lines like these"] if left > 0 else []
        raise InvalidSpec(str(path), problems[:MAX_TRACE_PROBLEMS] + more)
    return np.array([[int(cell) for cell in row] for _, row in numbered], dtype=np.int64)


def _row_problem(line: int, row: list[str]) -> str | None:
    if len(row) != 2:
        return f"line {line}: expected 2 numbers, found {len(row)}"
    numbers = [int(cell) for cell in row if re.fullmatch(r"\s*[0-9]{1,9}\s*", cell)]
    if len(numbers) < 2 or not all(1 <= number <= LONGEST for number in numbers):
        return f"line {line}: expected whole numbers from 1 to {LONGEST:,}, found {','.join(row)!r}"
    return None


def _law(spec: LengthSpec) -> LengthLaw:
    if spec.histogram is not None:
        return from_histogram(spec.histogram.lengths, spec.histogram.counts)
    return truncated_normal(*spec.moments)


def _source(*specs: LengthSpec) -> str:
    kinds = ["truncated normal" if spec.histogram is None else "histogram" for spec in specs]
    return kinds[0] if len(set(kinds)) == 1 else f"{kinds[0]} inputs, {kinds[1]} outputs"
