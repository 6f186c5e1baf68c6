"""A plan or a profile in a few lines, for those who want its result; `exegpt explain` says why."""

from __future__ import annotations

from exegpt_planner.in_words import on_instances, on_units, use_in_words
from exegpt_planner.plan import Plan
from exegpt_planner.profile_table import ProfileTable, StepShape
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule, WaaSchedule

DECODES_SHOWN = (1, 8, 32)  # queries
CONTEXT_SHOWN = 100  # KV tokens of each


def knobs(schedule: Schedule) -> str:
    """The schedule in words."""
    match schedule:
        case RraSchedule(encode_batch=batch, encode_interval=interval):
            each = f"encode {batch} queries, then {interval} decode iterations, in turn"
            return f"RRA: {each}{on_units(schedule)}"
        case CraSchedule(pool=pool, chunk_tokens=chunk):
            each = f"hold {pool} queries, encode at most {chunk} tokens an iteration"
            return f"CRA: {each}{on_units(schedule)}"
        case WaaSchedule(encoders=x, decoders=y, encode_batch=batch, pool=pool):
            return (
                f"WAA: {x} + {y} workers, encode {batch} queries at a time, decode at most {pool} in each pool"
                f"{on_instances(schedule)}"
            )


def plan_text(plan: Plan) -> str:
    """The schedule, what it promises, and what the other strategies would do."""
    expected, bound = plan.prediction, plan.bound
    lines = [
        f"Schedule  {knobs(plan.schedule)}",
        f"Bound     {bound.seconds:g} s for an answer of {plan.length_tokens} tokens "
        f"(the {bound.percentile_length:g}th percentile), from the start of its encode",
        f"Promised  {expected.promised_s:.2f} s to 99 % of such answers "
        f"(mean {expected.latency_mean_s:.2f} s, 99th percentile {expected.latency_p99_s:.2f} s, "
        f"margin {plan.error_margin:.1%})",
        f"Expected  {expected.queries_per_s:.2f} queries/s, {expected.tokens_per_s:.0f} tokens/s under a backlog; "
        f"{_cycle(plan)}; {expected.pool_mean:.1f} queries in decode{_where(plan.schedule)}",
        f"Memory    {expected.kv_tokens_reserved:,.0f} of {plan.kv_tokens_capacity:,} KV tokens{_where(plan.schedule)}",
        f"Workload  {plan.workload}",
    ]
    lines += [f"Limit     {use_in_words(use)} ({use.share:.0%})" for use in plan.limits]
    lines += [
        f"Instead   {other.strategy}: {other.reason}"
        for other in plan.alternatives
        if other.schedule != plan.schedule
    ]
    lines += [f"Warning   {warning}" for warning in plan.warnings]
    return "\n".join(lines) + "\n"


def _cycle(plan: Plan) -> str:
    expected = plan.prediction
    if isinstance(plan.schedule, WaaSchedule):
        busy = f"encoders busy {expected.encode_share:.0%} of the time"
        return f"decode iteration {expected.cycle_s * 1e3:.1f} ms, {busy}"
    return f"cycle {expected.cycle_s * 1e3:.1f} ms"


def _where(schedule: Schedule) -> str:
    """Of what the pool is one, where there are several."""
    match schedule:
        case WaaSchedule(decoders=num) if num > 1:
            return f" of each of {num} decoders"
        case RraSchedule(units=num) | CraSchedule(units=num) if num > 1:
            return f" of each of {num} {'workers' if schedule.layout is None else 'units'}"
    return ""


def profile_text(table: ProfileTable) -> str:
    """What was profiled, how well the table predicts, and a few step times."""
    key, reach = table.key, table.layer
    lines = [
        f"Profile   model {key.model_fingerprint} in {key.dtype} on {key.device}, {key.threads} thread(s)",
        f"Measured  {table.num_samples} steps; repeated ones differ by {table.spread:.1%} (median)",
        f"Error     {table.error_p95:.1%} on steps held out of the fit (95th percentile)",
        f"Reach     {reach.decode_queries.x[-1]:.0f} queries and {reach.decode_context.x[-1]:,.0f} KV tokens "
        f"in a decode, {reach.tokens.x[-1]:.0f} packed tokens in an encode",
    ]
    for num in DECODES_SHOWN:
        shape = StepShape(
            tokens=num,
            decode_queries=num,
            decode_context=num * CONTEXT_SHOWN,
            encode_chunks=0,
            encode_pairs=0,
            sampled=num,
        )
        if table.covers(shape):
            lines.append(
                f"Decode    {num:3d} queries of {CONTEXT_SHOWN} KV tokens: {table.step_s(shape) * 1e3:.1f} ms"
            )
    return "\n".join(lines) + "\n"
