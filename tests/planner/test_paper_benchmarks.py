"""What the paper's benchmarks reckon with: fits and their distances, padding, gains, monotonicity, effort."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from drift_margins import drifted, skewed
from exegpt_planner import policies
from exegpt_planner.lengths import LengthLaw, point, truncated_normal
from exegpt_planner.prompts import prompt_moments
from exegpt_planner.proof import LeafRecord, SpaceCertificate
from exegpt_planner.simulator.encodes import EncodeTimes
from exegpt_planner.simulator.pipeline import Pipeline
from exegpt_planner.tasks import paper_task
from exegpt_planner.workload import Workload
from length_fits import FITS, Ints, gamma, ks_distance, log_normal, normal, two_log_normals
from monotonicity import Turned, some_of, wrong
from paper_points import scenario
from paper_rows import Row
from paper_static import Static, padded_encodes
from paper_summary import beside_the_paper, by_task, choice, fixed, gain, papers, unmet
from real_lengths import split
from search_effort import num_open

ROOT = Path(__file__).resolve().parents[2]
LONGEST = 2000


def law(*pmf: float) -> LengthLaw:
    return LengthLaw(pmf=np.array([0.0, *pmf]))


def drawn(seed: int, kind: str, num: int = 20_000) -> Ints:
    rng = np.random.default_rng(seed)
    x = rng.gamma(3.0, 40.0, num) if kind == "gamma" else rng.lognormal(4.0, 0.6, num)
    return np.clip(np.ceil(x), 1, LONGEST).astype(np.int64)


def row(task: str, fixed_: dict[str, float], free: dict[str, float], bound_s: float = 1.0) -> Row:
    return Row(
        cluster="opt-13b 4xa40", task=task, part="30 %", bound_s=bound_s, fixed=fixed_, free=free
    )


def test_ks_distance_is_the_largest_gap() -> None:
    assert ks_distance(law(0.5, 0.5), np.array([1, 1, 1, 2])) == 0.25
    assert ks_distance(law(0.5, 0.5), np.array([1, 3])) == 0.5  # lengths beyond the law's
    assert ks_distance(law(0.25, 0.25, 0.5), np.array([1, 2])) == 0.5  # a law beyond the lengths
    assert ks_distance(law(0.0, 1.0), np.array([2, 2])) == 0


@pytest.mark.parametrize("name", FITS)
def test_every_fit_is_a_law_within_the_longest(name: str) -> None:
    lengths = drawn(1, "log-normal", 500)
    found = FITS[name](lengths, int(lengths.max()))
    assert found.max <= lengths.max()
    assert found.pmf.sum() == pytest.approx(1)


def test_fits_agree_with_scipys_likelihoods() -> None:
    lengths = drawn(2, "gamma")
    shape, _, scale = stats.gamma.fit(lengths - 0.5, floc=0)
    cells = np.diff(stats.gamma.cdf(np.arange(LONGEST + 1), shape, scale=scale))
    assert gamma(lengths, LONGEST).pmf[1:200] == pytest.approx(cells[:199], abs=1e-7)
    lengths = drawn(3, "log-normal")
    sigma, _, scale = stats.lognorm.fit(lengths - 0.5, floc=0)
    cells = np.diff(stats.lognorm.cdf(np.arange(LONGEST + 1), sigma, scale=scale))
    assert log_normal(lengths, LONGEST).pmf[1:200] == pytest.approx(cells[:199], abs=1e-4)


def test_a_laws_own_kind_fits_it_best() -> None:
    train, test = drawn(4, "gamma"), drawn(5, "gamma")
    assert (
        ks_distance(gamma(train, LONGEST), test)
        < 0.02
        < ks_distance(log_normal(train, LONGEST), test)
    )
    train, test = drawn(6, "log-normal"), drawn(7, "log-normal")
    assert (
        ks_distance(log_normal(train, LONGEST), test)
        < 0.02
        < ks_distance(gamma(train, LONGEST), test)
    )


def test_two_log_normals_find_two_humps() -> None:
    rng = np.random.default_rng(8)
    both = [rng.lognormal(m, 0.2, n) for m, n in ((2.5, 6000), (5.5, 4000))]
    lengths = np.ceil(np.concatenate(both)).astype(np.int64)
    rng.shuffle(lengths)
    train, test = lengths[:5000], lengths[5000:]
    assert ks_distance(two_log_normals(train, LONGEST), test) < 0.03
    assert ks_distance(log_normal(train, LONGEST), test) > 0.2


def test_the_truncated_normal_has_the_lengths_moments_or_the_exponential_their_mean() -> None:
    lengths = truncated_normal(128, 68, 320).sample(np.random.default_rng(9), 50_000)
    found = normal(lengths, 320)
    assert found.mean == pytest.approx(lengths.mean(), abs=0.05)
    assert found.var**0.5 == pytest.approx(lengths.std(), abs=0.05)
    wide = np.repeat([10, 1000], [900, 100])  # no truncated normal spreads so far
    assert normal(wide, 1000).mean == pytest.approx(wide.mean(), abs=0.05)


def test_padding_costs_what_longer_encodes_do_and_nothing_where_all_are_alike() -> None:
    where = scenario("opt-13b", "a40", 4, paper_task("S"))
    plain, padded = (
        Static.on(where.fixed, where.law, where.table, is_padded=each) for each in (False, True)
    )
    longest = Workload.independent(point(512), where.workload.output, source="longest")
    same = scenario("opt-13b", "a40", 4, longest)
    long, padded_long = (
        Static.on(same.fixed, same.law, same.table, is_padded=each) for each in (False, True)
    )
    pipeline, most = Pipeline.of(where.fixed, where.table), 65
    mean = EncodeTimes(pipeline, where.workload, prompt_moments(where.workload), most).times
    longer = padded_encodes(pipeline, where.workload, most).times
    for batch in (8, 64):
        rise_s = padded.plain.latency_s(batch, 63) - plain.plain.latency_s(batch, 63)
        assert rise_s == pytest.approx(longer.pass_s[batch] - mean.pass_s[batch], rel=1e-9)
        assert rise_s > 0.9 * mean.pass_s[batch]  # prompts twice as long
        assert padded.plain.latency_s(batch, 63) < long.plain.latency_s(batch, 63)
        assert padded_long.plain.latency_s(batch, 63) == long.plain.latency_s(batch, 63)


@pytest.mark.parametrize(("policy", "early"), [("FT", False), ("FT-ET", True)])
def test_every_batch_tried_is_what_the_search_finds(policy: policies.Policy, early: bool) -> None:
    where = scenario("opt-13b", "a40", 4, paper_task("S"))
    for bound_s in (3.0, math.inf):
        found = policies.best(policy, [where.fixed], where.table, where.law, bound_s)
        reached = where.batches.best(bound_s, early=early)
        assert found is not None
        assert reached == pytest.approx(found.queries_per_s, rel=1e-9)


def test_gains_are_over_the_points_where_both_keep_the_bound() -> None:
    rows = [
        row("S", {"FT": 2.0, "FT-ET": 4.0}, {"RRA": 4.0, "WAA": 8.0, "CRA": 6.0}),
        row("T", {"FT": 1.0, "FT-ET": 0.0}, {"RRA": 2.0, "WAA": 0.0, "CRA": 16.0}, math.inf),
        row("G", {"FT": 0.0}, {"RRA": 0.0}),
    ]
    found = gain(rows, papers, fixed("FT"))
    assert found is not None
    assert (found.mean, found.least, found.most, found.points) == (3, 2, 4, 2)
    assert found.geometric == pytest.approx(math.sqrt(8))
    assert found.most_at == "opt-13b 4xa40 S, 30 %"
    assert gain(rows[1:], choice, fixed("FT-ET")) is None
    assert [each.choice for each in rows] == ["WAA", "CRA", "-"]
    assert by_task(rows) == {"S": (1, 1), "T": (0, 1)}
    assert unmet(rows) == {
        "FT (fixed shape)": ["opt-13b 4xa40 G 30 %"],
        "FT-ET (fixed shape)": ["opt-13b 4xa40 T 30 %"],
        "RRA": ["opt-13b 4xa40 G 30 %"],
        "WAA": ["opt-13b 4xa40 T 30 %"],
    }
    unbound = beside_the_paper(rows)[-1]
    assert (unbound[2], unbound[3]) == (
        gain(rows[1:2], papers, fixed("FT")),
        gain(rows[1:2], choice, fixed("FT")),
    )


def test_a_fall_beyond_the_tolerance_is_not_monotone() -> None:
    turned = [
        Turned(latency_s=np.array([1.0, 0.8, 2.0]), throughput=np.array([10.0, 9.7, 9.0])),
        Turned(latency_s=np.array([1.0, 2.0]), throughput=np.array([1.0, 2.0])),
    ]
    assert wrong(turned, 10.0, 0.01) == (1 / 3, 2 / 3)
    assert wrong(turned, 10.0, 0.05) == (0.0, 1 / 3)
    assert some_of(1, 4) == [1, 2, 3, 4]
    assert some_of(1, 1000, 3) == [1, 500, 1000]


def test_exhaustive_search_evaluates_what_no_leaf_blocks() -> None:
    space = SpaceCertificate(
        strategy="RRA",
        axes=("encode_batch", "encode_interval"),
        space=(1, 10, 1, 10),
        num_schedules=100,
        num_evaluations=2,
        leaves=(
            LeafRecord(block=(6, 10, 1, 10), reason="memory", bound=0.0),
            LeafRecord(block=(1, 5, 1, 9), reason="latency", bound=3.0),
            LeafRecord(block=(1, 5, 10, 10), reason="evaluated", bound=0.0),
        ),
    )
    assert num_open(space) == 50


@pytest.mark.parametrize("skew", [-0.4, 0.2])
def test_a_skewed_law_has_the_moments_asked_for(skew: float) -> None:
    found = skewed(400, 60, skew, 1000)
    k = np.arange(len(found.pmf)) - found.mean
    assert found.mean == pytest.approx(400.5, abs=0.01)
    assert found.var**0.5 == pytest.approx(60, abs=0.05)
    assert found.pmf @ k**3 / found.var**1.5 == pytest.approx(skew, abs=0.01)


def test_drifts_are_of_the_papers_task() -> None:
    assert drifted(1.0, 1.0, 0.0).s99 == 292
    assert drifted(1.15, 1.0, 0.0).output.mean == pytest.approx(1.15 * 128 + 0.5, abs=0.1)


def test_requests_beyond_the_context_are_counted(tmp_path: Path) -> None:
    file = tmp_path / "some.csv"
    lines = [f"{10 + i},{i + 1}" for i in range(40)]
    file.write_text("input_tokens,output_tokens\n" + "\n".join([*lines, "2000,49", "2000,48"]))
    found = split(file, 2048)
    assert (len(found.estimate), len(found.test), found.dropped) == (4, 37, 1)
    kept = sorted(map(tuple, np.concatenate([found.estimate, found.test]).tolist()))
    assert kept == sorted([(10 + i, i + 1) for i in range(40)] + [(2000, 48)])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quick_evaluation_runs(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    done = subprocess.run(
        [sys.executable, "benchmarks/paper_scenarios.py", "--quick", "--json", str(out)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for said in ("Beside the paper", "WAA at 175B and 341B", "gpt3-341b 48xa40"):
        assert said in done.stdout
    assert out.read_text().count('"bound_s"') == 12
