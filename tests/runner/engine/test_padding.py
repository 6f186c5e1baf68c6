"""Rows padded to few sizes: oneDNN compiles a product for every number of rows it meets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from exegpt_runner.layers.linear import num_padded, packs, padded, padded_sizes


@given(st.integers(1, 100_000))
def test_padding_costs_an_eighth_at_most_and_never_loses_a_row(num_rows: int) -> None:
    assert num_rows <= num_padded(num_rows) <= max(num_rows * 9 / 8, num_rows + 7)


def test_there_are_few_sizes() -> None:
    sizes = {num_padded(num_rows) for num_rows in range(1, 4097)}
    assert len(sizes) == 57
    assert padded_sizes(4096) == sorted(sizes)


@given(st.integers(1, 5000))
def test_padded_sizes_stay(num_rows: int) -> None:
    assert num_padded(num_padded(num_rows)) == num_padded(num_rows)


def test_padding_adds_rows_of_zeros() -> None:
    if not packs(torch.bfloat16):
        pytest.skip("this CPU has no bf16 kernels, so nothing is padded")
    x = torch.ones(3, 2)
    grown = padded(x, torch.bfloat16)
    assert grown.shape == (8, 2)
    assert torch.equal(grown[:3], x)
    assert not grown[3:].any()


def test_exact_types_are_never_padded() -> None:
    x = torch.ones(3, 2)
    assert padded(x, torch.float64) is x
