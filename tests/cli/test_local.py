from __future__ import annotations

from pathlib import Path

import pytest

from cli.manifests import SMALL
from cli.tables import table_up_to
from exegpt_cli.local import FIRST_QUERIES, coverage_for, memory_budget, plan_on_profile
from exegpt_cli.wanted import Wanted
from exegpt_planner.errors import InfeasibleBound
from exegpt_planner.lengths import from_histogram, truncated_normal
from exegpt_planner.manifest import Deployment
from exegpt_planner.model_spec import ModelSpec
from exegpt_planner.plan import Bound
from exegpt_planner.profile_design import Coverage
from exegpt_planner.profile_table import ProfileTable
from exegpt_planner.workload import Workload

CHAT = Workload.independent(
    truncated_normal(64, 24, 128), truncated_normal(48, 24, 120), source="chat"
)
MODEL = ModelSpec(
    architecture="llama",
    num_layers=4,
    hidden=64,
    ffn=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab=300,
    context=512,
    rope_theta=10_000.0,
    norm_eps=1e-5,
    tied_embeddings=True,
    attention_bias=False,
    mlp_bias=False,
    bos_token=1,
    end_tokens=(2,),
)


def wanted(bound_s: float, workload: Workload = CHAT) -> Wanted:
    return Wanted(
        deployment=Deployment.model_validate(SMALL),
        folder=Path("/nowhere"),
        model=MODEL,
        workload=workload,
        bound=Bound(seconds=bound_s),
        strategies=("RRA",),
    )


def asked_for(question: Wanted) -> list[int]:
    """The largest decodes of the profiles asked for on the way to the plan."""
    asked: list[int] = []

    def table_of(coverage: Coverage) -> ProfileTable:
        asked.append(coverage.decode_queries)
        return table_up_to(coverage)

    plan_on_profile(question, table_of)
    return asked


def test_a_tight_bound_needs_one_profile_and_a_loose_one_larger_ones() -> None:
    assert asked_for(wanted(0.6)) == [FIRST_QUERIES]
    loose = asked_for(wanted(60.0))
    assert loose == [FIRST_QUERIES, 4 * FIRST_QUERIES, 16 * FIRST_QUERIES]


def test_a_bound_that_nothing_meets_is_said_after_one_profile() -> None:
    with pytest.raises(InfeasibleBound, match=r"within 0\.01 s"):
        asked_for(wanted(0.01))


def test_sizes_are_powers_of_two_so_that_a_load_with_probes_shares_the_profile() -> None:
    plain = coverage_for(CHAT, 8192)
    assert plain == coverage_for(CHAT.with_probes(0.2), 8192)
    for size in (plain.decode_queries, plain.context, plain.encode_tokens, plain.kv_tokens):
        assert size & (size - 1) == 0
    assert plain.context >= 128 + 120
    assert plain.encode_tokens >= 128
    assert coverage_for(CHAT, 8192, 128).holds(plain)


def test_a_prompt_of_the_longest_length_is_always_covered() -> None:
    inputs = from_histogram([8, 4000], [999, 1])
    rare = Workload.independent(inputs, truncated_normal(10, 4, 20), source="rare")
    coverage = coverage_for(rare, 8192, 1)
    assert coverage.encode_tokens >= rare.input.max
    assert coverage.kv_tokens >= rare.input.max + rare.output.max


def test_the_memory_budget_is_a_share_of_what_is_available_in_whole_grains() -> None:
    budget = memory_budget()
    assert 0 < budget.reserve_bytes < budget.device_bytes
    assert budget.device_bytes % (256 << 20) == 0
