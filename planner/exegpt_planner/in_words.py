"""A schedule in words, in one line."""

from __future__ import annotations

from collections import Counter

from exegpt_planner.layout import Layout
from exegpt_planner.schedule import CraSchedule, RraSchedule, Schedule, WaaSchedule
from exegpt_planner.simulator.limits import Name, Use


def words(schedule: Schedule) -> str:
    """A schedule in one line."""
    match schedule:
        case RraSchedule():
            return (
                f"RRA: encode {schedule.encode_batch} queries, then decode the pool "
                f"{schedule.encode_interval} times, in turn{on_units(schedule)}"
            )
        case CraSchedule():
            return (
                f"CRA: hold {schedule.pool} queries by refilling every iteration, encoding at most "
                f"{schedule.chunk_tokens} tokens in each{_of_each(schedule)}{on_units(schedule)}"
            )
        case WaaSchedule():
            return (
                f"WAA: {_workers(schedule.encoders, 'encodes', 'encode')} {schedule.encode_batch} queries at a time, "
                f"{_workers(schedule.decoders, 'decodes', 'decode')} at most {schedule.pool}"
                f"{' each' if schedule.decoders > 1 else ''}{on_instances(schedule)}"
            )


def _of_each(schedule: CraSchedule) -> str:
    return " of every micro-batch" if schedule.micro_batches > 1 else ""


def on_units(schedule: RraSchedule | CraSchedule) -> str:
    """Where it runs, in words; nothing for one device."""
    layout = schedule.layout
    if layout is None:
        return _each(schedule.units)
    each = f"on each of {schedule.units} units of " if schedule.units > 1 else "on "
    return f", {each}{_devices(layout, schedule.micro_batches)}"


def on_instances(schedule: WaaSchedule) -> str:
    """What its encoders and decoders are, in words; nothing for a device each."""
    encoder, decoder = schedule.layouts
    if encoder is None or decoder is None:
        return ""
    number = schedule.micro_batches
    if encoder == decoder and len(encoder.stages) == 1:
        return f", every one a tensor-parallel group of {encoder.degree}"
    return (
        f", {_instances(schedule.encoders, 'encoder')} on {_devices(encoder, 1)}; "
        f"{_instances(schedule.decoders, 'decoder')} on {_devices(decoder, number)}"
    )


def _devices(layout: Layout, micro_batches: int) -> str:
    """Those of one pipeline, and in how many micro-batches they work."""
    if layout.devices == 1:
        return "one device"
    stages = Counter(stage.degree for stage in layout.stages)
    parts = [_stages(number, degree) for degree, number in sorted(stages.items(), reverse=True)]
    if micro_batches > 1:
        parts.append(f"in {micro_batches} micro-batches")
    return f"{layout.devices} devices: {', '.join(parts)}"


def _instances(number: int, what: str) -> str:
    return f"the {what}" if number == 1 else f"each {what}"


def _stages(number: int, degree: int) -> str:
    what = f"tensor-parallel groups of {degree}" if degree > 1 else "stages of one device"
    if number == 1:
        return f"one group of {degree}" if degree > 1 else "one stage of one device"
    return f"{number} {what}"


def _each(units: int) -> str:
    return f", on each of {units} workers" if units > 1 else ""


def _workers(num: int, one: str, many: str) -> str:
    return f"1 worker {one}" if num == 1 else f"{num} workers {many}"


LIMITS: dict[Name, str] = {
    "answer": "a whole answer",
    "all_answers": "99 % of all answers",
    "first_token": "the first token",
    "gap": "the longest gap between tokens",
    "token": "a token after the first",
    "arrivals": "arrivals",
}


def use_in_words(use: Use) -> str:
    """How far a limit is used, e.g. "the first token 0.8 s of 0.5 s"."""
    unit = "queries/s" if use.name == "arrivals" else "s"
    return f"{LIMITS[use.name]} {use.promised:.3g} {unit} of {use.limit:.3g}"
