"""Sampled tokens follow the law asked for, and depend on the seed and the position alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import chisquare, kstest

from engine_driver import Driver
from engine_oracle import Oracle
from exegpt_runner.engine import Engine
from exegpt_runner.sampler import Sampling, SamplingRows, choose, uniform_at

LOGITS = torch.tensor([1.0, -0.5, 2.0, 0.3, -torch.inf, 1.9, -3.0, 0.0], dtype=torch.float64)
DRAWS = 4000


def law(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> NDArray[np.float64]:
    """The distribution by its definition, one step after another."""
    logits = LOGITS.numpy() / temperature
    order = np.argsort(-logits)
    kept = order[: top_k or None]
    masses = np.exp(logits[kept]) / np.exp(logits[kept]).sum()
    before = np.cumsum(masses) - masses
    kept = kept[before < top_p]
    result = np.zeros(len(logits))
    result[kept] = np.exp(logits[kept]) / np.exp(logits[kept]).sum()
    return result


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 3.0, "top_k": 4},
        {"temperature": 1.0, "top_p": 0.8},
        {"temperature": 2.0, "top_k": 5, "top_p": 0.7},
        {"temperature": 1.0, "top_k": 100},
    ],
)
def test_frequencies_follow_the_law(options: dict[str, float]) -> None:
    sampling = Sampling(**options, seed=7)  # type: ignore[arg-type]  # top_k is an int in the cases
    tokens = [choose(LOGITS, sampling, uniform_at(7, i)) for i in range(DRAWS)]
    counts = np.bincount(tokens, minlength=len(LOGITS))
    expected = law(**options) * DRAWS  # type: ignore[arg-type]  # as above
    assert counts[expected == 0].sum() == 0
    assert chisquare(counts[expected > 0], expected[expected > 0]).pvalue > 0.01


def test_uniforms_are_uniform_over_positions_and_over_seeds() -> None:
    over_positions = [uniform_at(3, position) for position in range(DRAWS)]
    over_seeds = [uniform_at(seed, 3) for seed in range(DRAWS)]
    assert kstest(over_positions, "uniform").pvalue > 0.01
    assert kstest(over_seeds, "uniform").pvalue > 0.01
    assert abs(np.corrcoef(over_positions[1:], over_positions[:-1])[0, 1]) < 0.05


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
@pytest.mark.parametrize("temperature", [1e-300, 1e-6, 1.0, 1e300])
def test_extreme_temperatures_and_uniforms_choose_a_possible_token(
    uniform: float, temperature: float
) -> None:
    token = choose(LOGITS, Sampling(temperature=temperature), uniform)
    assert token != 4
    if temperature < 1e-3:
        assert token == 2


def test_tiny_top_p_and_top_k_of_one_are_greedy() -> None:
    for sampling in (Sampling(temperature=5, top_p=1e-9), Sampling(temperature=5, top_k=1)):
        assert choose(LOGITS, sampling, 0.999) == 2


def test_end_tokens_wait_for_min_tokens() -> None:
    logits = LOGITS.expand(3, -1)
    rows = SamplingRows(
        [
            Sampling(end_tokens=(2, 5), min_tokens=4),
            Sampling(end_tokens=(2,)),
            Sampling(end_tokens=(2,), min_tokens=2, temperature=1e-6, ignore_eos=True),
        ]
    )
    assert rows.sample(logits, np.array([3, 0, 1])).tolist() == [0, 2, 5]
    assert rows.sample(logits, np.array([4, 0, 2])).tolist() == [2, 2, 2]
    assert rows.hit_end(np.array([5, 5, 2])).tolist() == [True, False, False]
    assert LOGITS[2] == 2.0  # the caller's logits are left alone


def test_greedy_takes_the_first_of_equals_in_every_dtype() -> None:
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        logits = torch.tensor([[0, 3, 3, 1]], dtype=dtype)
        assert SamplingRows([Sampling()]).sample(logits, np.array([0])).tolist() == [1]


def test_all_that_is_wrong_with_a_sampling_is_said_at_once() -> None:
    with pytest.raises(ValueError, match=r"temperature -1.*top_p 0.*max_tokens 0"):
        Sampling(temperature=-1, top_p=0, max_tokens=0)


def test_sampled_outputs_do_not_depend_on_batch_or_evictions(oracle: Oracle) -> None:
    rng = np.random.default_rng(0)
    prompts = {query: rng.integers(3, 97, 20 * query).tolist() for query in range(1, 6)}
    samplings = {
        query: Sampling(temperature=1.0, top_p=0.95, top_k=50, seed=query, max_tokens=40)
        for query in prompts
    }
    outputs = []
    for kv_tokens, encode_queries in ((4096, 5), (4096, 1), (256, 5)):
        driver = Driver(Engine(oracle.model, kv_tokens), prompts, samplings)
        driver.finish(encode_queries=encode_queries, decode_iterations=2 * encode_queries)
        outputs.append(driver.outputs)
        assert (driver.evictions > 0) == (kv_tokens == 256)
    assert outputs[0] == outputs[1] == outputs[2]
    assert len({tuple(output) for output in outputs[0].values()}) == 5
