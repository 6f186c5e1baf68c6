"""Why no schedule keeps a bound: the best reachable promise, what binds, and the smallest change that would do."""

from __future__ import annotations

from collections.abc import Sequence

from exegpt_planner.errors import ExeGPTError, IncompleteProfile, InfeasibleBound
from exegpt_planner.in_words import LIMITS, on_instances, on_units, use_in_words
from exegpt_planner.schedule import Reached, WaaSchedule
from exegpt_planner.search import ROUNDING, Candidate, fastest
from exegpt_planner.simulator.limits import Use
from exegpt_planner.simulator.promise import Promise
from exegpt_planner.strategies import StrategySpace

CLOSE = 0.02  # relative: of several limits the nearest schedule is looked for no closer


def infeasible(spaces: Sequence[StrategySpace], *, bound_s: float, promise: Promise) -> ExeGPTError:
    """The error to raise when no schedule in `spaces` keeps the bound."""
    slack = ROUNDING if promise.limits is None else CLOSE
    reached = [(space, fastest(space, slack)) for space in spaces]
    fitting = [(space, best) for space, best in reached if best is not None]
    if not fitting:
        return _nothing_fits(spaces)
    space, best = min(fitting, key=lambda pair: pair[1].promised_s)
    if promise.limits is not None:
        return _beyond_limits(space, best, promise, promise.limits.answer_s)
    fits = _fits_tokens(space, bound_s, promise)
    return InfeasibleBound(
        f"no schedule promises an answer of {promise.length} tokens within {bound_s:g} s; the fastest, "
        f"{describe(space, best)}, promises {_upward(best.promised_s)} s. Latency binds: "
        f"{_parts(space, best, promise)}. "
        f"The smallest change that would do: raise latencyBound.seconds to {_upward(best.promised_s)}"
        f"{_shorter(fits, promise)}; or use a faster device.",
        reached=_reached(space, best, promise, fits),
    )


def _beyond_limits(
    space: StrategySpace, best: Candidate, promise: Promise, answer_s: float
) -> ExeGPTError:
    """Of several limits: those that the nearest schedule breaks are what to loosen."""
    found = space.uses(best.point)
    broken = [use for use in found if use.share > 1]
    kept = [use_in_words(use) for use in found if use.share <= 1]
    return InfeasibleBound(
        f"no schedule keeps all limits; the nearest, {describe(space, best)}, needs "
        f"{', '.join(map(use_in_words, broken))}{'; it keeps ' if kept else ''}{', '.join(kept)}. "
        f"The smallest change that would do: allow {', '.join(_allowing(use) for use in broken)}; "
        "or use faster devices.",
        reached=_reached(space, best, promise, _fits_tokens(space, answer_s, promise)),
    )


def _allowing(use: Use) -> str:
    if use.name == "arrivals":
        return f"at most {0.995 * use.limit:.3g} queries/s to arrive"  # rounded, still below
    return f"{LIMITS[use.name]} {_upward(use.promised)} s"


def describe(space: StrategySpace, best: Candidate) -> str:
    """A schedule by its knobs, e.g. "RRA with encode_batch=1, encode_interval=39", and where it runs."""
    schedule = space.schedule(best.point)
    knobs = schedule.model_dump(exclude={"strategy", "layout", "encoder_layout", "decoder_layout"})
    text = f"{space.strategy} with " + ", ".join(f"{knob}={value}" for knob, value in knobs.items())
    if isinstance(schedule, WaaSchedule):
        return text + on_instances(schedule)
    return text + (on_units(schedule) if schedule.layout is not None else "")


def _reached(space: StrategySpace, best: Candidate, promise: Promise, fits: int) -> Reached:
    expected = space.predict(best.point)
    with_pool_s = expected.latency_mean_s + promise.sds * expected.latency_sd_s
    return Reached(
        schedule=space.schedule(best.point),
        prediction=expected,
        length_tokens=promise.length,
        mean_s=expected.latency_mean_s,
        fluctuation_s=with_pool_s - expected.latency_mean_s,
        margin_s=expected.promised_s - with_pool_s,
        fits_tokens=fits,
    )


def _parts(space: StrategySpace, best: Candidate, promise: Promise) -> str:
    expected = space.predict(best.point)
    if promise.sds == 0 and promise.error == 0:
        return f"its mean latency is {expected.latency_mean_s:.3g} s"
    with_pool_s = expected.latency_mean_s + promise.sds * expected.latency_sd_s
    return (
        f"its mean latency is {expected.latency_mean_s:.3g} s, the pool's fluctuation adds "
        f"{with_pool_s - expected.latency_mean_s:.2g} s and the profile's error margin of {promise.error:.1%} "
        f"{best.promised_s - with_pool_s:.2g} s"
    )


def _shorter(fits: int, promise: Promise) -> str:
    """The length that would be in time, as a remedy."""
    return f", or bound answers of at most {fits} tokens (now {promise.length})" if fits else ""


def _fits_tokens(space: StrategySpace, bound_s: float, promise: Promise) -> int:
    """The longest answer that the smallest schedule promises in time; 0: none."""
    fits, too_long = 0, promise.length
    while too_long - fits > 1:
        length = (fits + too_long) // 2
        if space.promised_for(space.smallest, length) <= bound_s:
            fits = length
        else:
            too_long = length
    return fits


def _nothing_fits(spaces: Sequence[StrategySpace]) -> ExeGPTError:
    space = spaces[0]
    smallest = space.smallest
    if space.blocked(smallest) in ("coverage", "shape"):
        return IncompleteProfile(
            f"the profile covers not even the smallest schedule of {space.strategy}: its pool reaches "
            f"{space.edge(smallest):.2g} times as far. Profile larger decode batches and contexts."
        )
    needed = space.kv_need(smallest)
    return InfeasibleBound(
        f"memory binds: the smallest schedule of {space.strategy} needs {needed:.0f} KV tokens, but "
        f"{space.kv_capacity:.0f} fit beside the weights. Use a device with more memory, keep less of it free, "
        "or serve shorter requests."
    )


def _upward(seconds: float) -> str:
    """Three digits, rounded up, so that the number does what is said of it."""
    for digits in range(3, 8):
        text = f"{seconds:.{digits}g}"
        if float(text) >= seconds:
            return text
        step = 10 ** -(digits - 1)
        text = f"{seconds * (1 + step):.{digits}g}"
        if float(text) >= seconds:
            return text
    return f"{seconds:.9g}"
