"""The compiled kernels against the same arithmetic in float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from exegpt_runner.layers import chunk_attention, kernels, tiles
from exegpt_runner.layers.batch import ChunkRows
from exegpt_runner.layers.few_rows import FewRows
from exegpt_runner.layers.finish import Finish
from exegpt_runner.layers.linear import Linear

pytestmark = pytest.mark.skipif(
    not kernels.usable(torch.bfloat16, 16), reason="this CPU has no bf16 kernels"
)

needs_tiles = pytest.mark.skipif(not tiles.usable(), reason="this CPU has no tiles of bf16")
SHAPES = [(3, 1, 32), (8, 2, 96)]  # H, G, D
CAPACITY = 320
ROUNDING = 2**-8  # of bfloat16, relative


def noise(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(*shape, generator=generator)).to(torch.bfloat16)


def attended(
    qkv: Tensor, kv: Tensor, starts: list[int], contexts: list[int], num_heads: int
) -> Tensor:
    """In float64: softmax(q K' / sqrt(D)) V of each row."""
    G, D = kv.shape[1], kv.shape[3]
    rows = []
    for row, (start, context) in enumerate(zip(starts, contexts, strict=True)):
        keys, values = kv[:, :, start : start + context].double()
        query = qkv[row, :num_heads].double().view(G, -1, D)
        weights = (query @ keys.transpose(1, 2) / D**0.5).softmax(-1)
        rows.append((weights @ values).reshape(-1))
    return torch.stack(rows)


def run(qkv: Tensor, kv: Tensor, starts: list[int], contexts: list[int], num_heads: int) -> Tensor:
    compiled = kernels.attention_kernels(num_heads, kv.shape[1], kv.shape[3])
    out = torch.full((len(qkv), num_heads * kv.shape[3]), 7.0, dtype=torch.bfloat16)
    compiled.attend(qkv, kv, np.array(starts), np.array(contexts), out)
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_attention_is_that_of_float64(shape: tuple[int, int, int]) -> None:
    H, G, D = shape
    contexts = [1, 2, 15, 16, 17, 64, 3, 200]
    starts = [0, 1, 3, 18, 34, 51, 115, 118]
    qkv, kv = noise(len(contexts) + 2, H + 2 * G, D), noise(2, G, CAPACITY, D, seed=1)
    out = run(qkv, kv, starts, contexts, H)
    expected = attended(qkv, kv, starts, contexts, H)
    torch.testing.assert_close(out[:-2].double(), expected, rtol=ROUNDING, atol=1e-5)
    assert (out[-2:] == 7).all()  # rows beyond the queries are not touched


def test_one_score_far_above_the_others_takes_all_the_weight() -> None:
    H, G, D = SHAPES[0]
    qkv, kv = noise(1, H + 2 * G, D, scale=30), noise(2, G, CAPACITY, D, seed=1, scale=30)
    out = run(qkv, kv, [0], [300], H)
    torch.testing.assert_close(
        out.double(), attended(qkv, kv, [0], [300], H), rtol=ROUNDING, atol=1e-4
    )


def test_what_lies_beside_a_context_is_never_read_into_it() -> None:
    H, G, D = SHAPES[0]
    qkv, kv = noise(1, H + 2 * G, D), noise(2, G, CAPACITY, D, seed=1)
    clean = run(qkv, kv, [64], [5], H)
    kv[:, :, :64], kv[:, :, 69:] = torch.nan, torch.inf
    assert torch.equal(run(qkv, kv, [64], [5], H), clean)


def test_a_nan_is_not_hidden() -> None:
    H, G, D = SHAPES[0]
    qkv, kv = noise(1, H + 2 * G, D), noise(2, G, CAPACITY, D, seed=1)
    kv[1, :, 3, 0] = torch.nan
    assert run(qkv, kv, [0], [5], H).view(H, D)[:, 0].isnan().all()


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_turned_and_put_where_they_belong(shape: tuple[int, int, int]) -> None:
    H, G, D = shape
    qkv, kv = noise(7, H + 2 * G, D), noise(2, G, CAPACITY, D, seed=1)
    slots = torch.tensor([5, 300, 0, 17, 64])  # two rows of padding
    angles = torch.randn(7, D // 2)
    pairs = torch.view_as_complex(
        qkv[:5, : H + G].double().view(5, H + G, 2, D // 2).transpose(2, 3).contiguous()
    )
    turned = pairs * torch.polar(torch.ones(5, 1, D // 2), angles[:5, None]).to(torch.complex128)
    expected = torch.view_as_real(turned).transpose(2, 3).reshape(5, H + G, D)
    before, untouched = qkv.clone(), kv.clone()
    compiled = kernels.attention_kernels(H, G, D)
    compiled.place(qkv, angles.cos(), angles.sin(), slots, kv)
    torch.testing.assert_close(qkv[:5, : H + G].double(), expected, rtol=ROUNDING, atol=1e-2)
    assert torch.equal(qkv[:5, H + G :], before[:5, H + G :])
    assert torch.equal(qkv[5:], before[5:])
    assert torch.equal(kv.view(2 * G, CAPACITY, D)[:, slots], qkv[:5, H:].transpose(0, 1))
    others = torch.ones(CAPACITY, dtype=torch.bool)
    others[slots] = False
    assert torch.equal(kv[:, :, others], untouched[:, :, others])


@pytest.mark.parametrize("shape", [(1, 16), (5, 576), (64, 48)])
def test_the_norm_is_that_of_float64(shape: tuple[int, int]) -> None:
    x, weight = noise(*shape, scale=3), torch.randn(shape[1])
    wide = x.double()
    expected = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    found = kernels.NormKernel(weight, 1e-5)(x)
    torch.testing.assert_close(found.double(), expected, rtol=ROUNDING, atol=1e-6)


def test_every_head_has_its_own_weights() -> None:
    x, weight = noise(6, 3, 32), torch.randn(3, 32)
    heads = [kernels.NormKernel(weight[i], 1e-6)(x[:, i]) for i in range(3)]
    assert torch.equal(kernels.NormKernel(weight, 1e-6)(x), torch.stack(heads, 1))


def test_threads_change_no_number() -> None:
    H, G, D = SHAPES[0]
    kv, weight = noise(2, G, CAPACITY, D, seed=1), torch.randn(D)
    angles, slots = torch.randn(9, D // 2), torch.arange(9)

    def everything() -> list[Tensor]:
        qkv, cache = noise(9, H + 2 * G, D), kv.clone()
        normalised = kernels.NormKernel(weight, 1e-5)(qkv)
        compiled = kernels.attention_kernels(H, G, D)
        compiled.place(qkv, angles.cos(), angles.sin(), slots, cache)
        return [normalised, qkv, cache, run(qkv, cache, [0] * 9, list(range(1, 10)), H)]

    before = torch.get_num_threads()
    results = []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            results.append(everything())
    finally:
        torch.set_num_threads(before)
    for alone, shared in zip(*results, strict=True):
        assert torch.equal(alone, shared)


@given(st.floats(width=32, allow_subnormal=False))
@settings(max_examples=200)  # the first call compiles
def test_numbers_are_rounded_as_torch_rounds_them(number: float) -> None:
    """A norm with these weights and x = 1 stores the weights: to nearest, ties to even, NaN and infinity kept."""
    weight = torch.full((16,), number)
    found = kernels.NormKernel(weight, 0.0)(torch.ones(1, 16, dtype=torch.bfloat16))
    expected = weight.to(torch.bfloat16)
    torch.testing.assert_close(found[0], expected, rtol=0, atol=0, equal_nan=True)


FINISHES: dict[Finish, Callable[[Tensor, Tensor], Tensor]] = {
    "none": lambda x, _: x,
    "silu": lambda x, _: torch.nn.functional.silu(x),
    "relu": lambda x, _: x.relu(),
    "add": lambda x, other: x + other,
    "multiply": lambda x, other: x * other,
}


def few_rows(weight: Tensor, bias: Tensor | None) -> FewRows | None:
    return FewRows.of(torch.ops.mkldnn._reorder_linear_weight(weight, 32), weight, bias)


needs_blocks = pytest.mark.skipif(
    few_rows(torch.zeros(96, 64, dtype=torch.bfloat16), None) is None,
    reason="oneDNN packs matrices in another layout on this CPU",
)


@needs_blocks
@pytest.mark.parametrize(
    "num_rows", [1, *(pytest.param(n, marks=needs_tiles) for n in (8, 16, 24, 32, 40, 56, 64))]
)
@pytest.mark.parametrize("finish", FINISHES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_product_of_few_rows_is_that_of_float64(
    finish: Finish, has_bias: bool, num_rows: int
) -> None:
    weight, bias = noise(96, 64), noise(96, seed=1) if has_bias else None
    product = few_rows(weight, bias)
    assert product is not None
    assert product.takes(num_rows)
    x, other = noise(num_rows, 64, seed=2), noise(num_rows, 96, seed=3)
    exact = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    expected = FINISHES[finish](exact, other.double())
    found = product(x, finish, other).double()
    torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=1e-5)


@pytest.mark.parametrize("num_rows", [0, 7, 72])
def test_other_numbers_of_rows_are_left_to_onednn(num_rows: int) -> None:
    weight, x = noise(96, 64), noise(num_rows, 64, seed=1)
    product = few_rows(weight, None)
    assert product is None or not product.takes(num_rows)
    expected = x.double() @ weight.double().T
    found = Linear(weight)(x).double()
    torch.testing.assert_close(found, expected, rtol=ROUNDING, atol=1e-5)


@needs_tiles
def test_products_of_onednn_and_of_tiles_do_not_disturb_each_other() -> None:
    weight = noise(96, 64)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, 32)
    product = FewRows.of(packed, weight, None)
    assert product is not None
    few, many = noise(24, 64, seed=1), noise(100, 64, seed=2)
    for _ in range(3):
        for x, found in (
            (few, product(few, "none")),
            (many, torch.ops.mkldnn._linear_pointwise(many, packed, None, "none", [], "")),
        ):
            expected = x.double() @ weight.double().T
            torch.testing.assert_close(found.double(), expected, rtol=ROUNDING, atol=1e-5)


@needs_tiles
@pytest.mark.parametrize("shape", [*SHAPES, (4, 2, 160)])
@pytest.mark.parametrize("start", [0, 1, 5, 31, 32, 100])
@pytest.mark.parametrize("num_tokens", [1, 7, 16, 33, 80])
def test_attention_of_a_chunk_is_that_of_float64(
    shape: tuple[int, int, int], start: int, num_tokens: int
) -> None:
    H, G, D = shape
    first, kv_start = 3, 17
    qkv, kv = noise(first + num_tokens, H + 2 * G, D), noise(2, G, CAPACITY, D, seed=1)
    end = kv_start + start + num_tokens
    kv[:, :, :kv_start], kv[:, :, end:] = torch.nan, torch.inf  # what is beside must not matter
    attend = chunk_attention.ChunkAttention.of(H, G, D)
    assert attend is not None
    out = torch.full((first + num_tokens, H * D), 7.0, dtype=torch.bfloat16)
    chunk = ChunkRows(first=first, num_tokens=num_tokens, kv_start=kv_start, start=start)
    attend(qkv, kv, chunk, out)
    contexts = [start + 1 + row for row in range(num_tokens)]
    expected = attended(qkv[first:], kv, [kv_start] * num_tokens, contexts, H)
    # weights are rounded to bfloat16 before they meet the values, as in torch
    torch.testing.assert_close(out[first:].double(), expected, rtol=ROUNDING, atol=0.01)
    assert (out[:first] == 7).all()


@needs_blocks
def test_silu_of_large_numbers_is_exact_on_both_sides() -> None:
    weight = torch.diag(torch.tensor([200.0, -200.0, 40.0, -40.0] * 8)).to(torch.bfloat16)
    product = few_rows(weight, None)
    assert product is not None
    found = product(torch.ones(1, 32, dtype=torch.bfloat16), "silu")
    assert found[0, :4].tolist() == [200.0, 0.0, 40.0, pytest.approx(-40 * math.exp(-40), rel=0.01)]


def test_a_matrix_that_is_laid_out_otherwise_is_left_to_onednn() -> None:
    weight = noise(64, 64)
    assert few_rows(noise(48, 64), None) is None  # no whole block of outputs
    assert few_rows(noise(64, 48), None) is None
    onednn = torch.ops.mkldnn
    other = onednn._reorder_linear_weight(noise(64, 64, seed=1), 32)
    assert FewRows.of(other, weight, None) is None
