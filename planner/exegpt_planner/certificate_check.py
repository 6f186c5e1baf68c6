"""Checks a certificate afresh: that no schedule within the bound has more throughput than its winner.

None of the search's code is used. Trusted are the simulator, which says what a schedule does, and the list of shapes.
Blocks are bounded by Jensen alone: a step takes at least what a convex curve below its costs takes at the pool's mean.
What that does not settle is simulated (docs/theory.md).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np

from exegpt_planner.certificate_cra import Cra
from exegpt_planner.certificate_file import CertificateFile, Checked
from exegpt_planner.certificate_rra import Rra
from exegpt_planner.certificate_spaces import SAME, Question, Site, edge, is_in, named, predicted
from exegpt_planner.certificate_waa import Waa, left
from exegpt_planner.proof import Corners, InputHashes, LeafRecord, Relaxed, SpaceCertificate

Space = Rra | Cra | Waa

NEAR_EDGE = 0.9  # of the table's reach: a larger one might allow a better schedule
AXES = {  # the knobs x and y
    "RRA": ("encode_batch", "encode_interval"),
    "CRA": ("the pool of a micro-batch", "the place of chunk_tokens"),
    "WAA": ("encode_batch", "pool"),
}


def check(file: CertificateFile, report: Callable[[float, float], None]) -> Checked:
    """All that is wrong with a certificate, and what was looked at; `report` hears of spaces done, of how many."""
    asked, proof = Question(file=file), file.certificate
    searched = {(each.strategy, each.shape): each for each in proof.spaces}
    relaxed = {(each.strategy, each.shape): each for each in proof.relaxed}
    pairs = [site for site in searched if site[0] == "WAA" and 0 <= site[1] < len(asked.pairs)]
    found, num_leaves, simulated = list(_claims(asked)), 0, 0
    known = {*asked.sites, *pairs, *(("WAA", first) for first, _ in asked.pairs.spans())}
    found += [f"{named(each)}: no such space" for each in {*searched, *relaxed} - known]
    if len(searched) + len(relaxed) < len(proof.spaces) + len(proof.relaxed):
        found.append("a space is given twice")
    for done, site in enumerate((*asked.sites, *pairs)):
        report(done, len(asked.sites) + len(pairs))
        space, leaves = _space(asked, site), []
        if site in searched:
            leaves = list(searched[site].leaves)
            gaps = (
                *_gaps(space.whole, searched[site].space, leaves),
                *_split(asked, searched[site]),
            )
            found += [f"{named(site)}: {each}" for each in gaps]
        elif site in relaxed and relaxed[site].number == 1:
            whole = LeafRecord(
                block=space.whole, reason="throughput", bound=relaxed[site].throughput
            )
            leaves = [whole]
        else:
            found.append(f"{named(site)}: neither searched nor bounded")
        for leaf in leaves:
            faults = _faults(asked, space, leaf)
            found += [f"{named(site)}, {leaf.reason} {leaf.block}: {each}" for each in faults]
        num_leaves, simulated = num_leaves + len(leaves), simulated + space.simulated
    for at, faults, points in _bounded_pairs(asked, {number for _, number in pairs}, relaxed):
        found += [f"{named(at)}: {each}" for each in faults]
        simulated += points
    wrong, flags = _winner(asked, searched.keys())
    return Checked(
        schedule=file.schedule,
        queries_per_s=file.prediction.queries_per_s,
        shapes=len(asked.shapes),
        spaces=len(asked.sites) + len(asked.pairs),
        searched=len(searched),
        leaves=num_leaves + sum(site[0] == "WAA" for site in relaxed),
        simulated=simulated,
        problems=(*found, *wrong),
        flags=tuple(flags),
    )


def _claims(asked: Question) -> Iterator[str]:
    """What is said of the inputs and is not so."""
    file = asked.file
    inputs = file.memory.budget.inputs() | {"workers": file.devices}
    hashes = InputHashes.of(file.table, file.workload.workload, file.bound, inputs)
    length = asked.promise.length - asked.law.workload.delay
    told = {"num_shapes": file.certificate.num_shapes, "length_tokens": file.length_tokens}
    found = {"num_shapes": len(asked.shapes), "length_tokens": length}
    said = dict(file.certificate.inputs) | told
    for name, value in (dict(hashes) | found).items():
        if said[name] != value:
            yield f"{name}: {value} by the inputs, the certificate says {said[name]}"


def _winner(asked: Question, searched: Collection[Site]) -> tuple[list[str], list[str]]:
    """(what is wrong with the winner, what a reader should know of where it lies)."""
    file, placed = asked.file, asked.place(asked.file.schedule)
    if placed is None or placed[0] not in searched:
        return [f"schedule: in none of the spaces searched: {file.schedule!r}"], []
    site, (x, y) = placed
    space = _space(asked, site)
    x1, x2, y1, y2 = space.whole
    if not (is_in((x, x, y, y), space.whole) and space.fits(x, y)):
        return [f"schedule: does not fit: {file.schedule!r}"], []
    wrong, flags = [], []
    expected = dict(predicted(space.model, file.schedule, asked.promise))
    for name, said in dict(file.prediction).items():
        if not np.isclose(said, expected[name], rtol=SAME, atol=0):
            wrong.append(f"prediction.{name}: {expected[name]!r} by the simulator, not {said!r}")
    if not asked.keeps(space.promised_s(x, y)):
        promised_s = space.promised_s(x, y)
        wrong.append(
            f"schedule: promises {promised_s:g} s, the bound is {file.bound.reference_s:g} s"
        )
    if (reach := edge(asked, file.schedule)) > NEAR_EDGE:
        flags.append(f"the schedule uses {reach:.0%} of what the table covers")
    for axis, at, ends in zip(AXES[site[0]], (x, y), ((x1, x2), (y1, y2)), strict=True):
        if at in ends:
            flags.append(f"{axis} lies at an end of its axis, {ends[0]} to {ends[1]}")
    return wrong, flags


def _space(asked: Question, site: Site) -> Space:
    if site[0] == "WAA":
        return Waa(asked, site[1])
    shape = asked.shapes[site[1]]
    return Rra(asked, shape) if site[0] == "RRA" else Cra(asked, shape)


def _split(asked: Question, said: SpaceCertificate) -> Iterator[str]:
    split = None
    if said.strategy == "WAA":
        encoders, decoders = asked.pairs.sides(said.shape)
        split = encoders.units, decoders.units
    if said.split != split:
        yield f"its split is {split}, not {said.split}"


def _bounded_pairs(
    asked: Question, searched: Collection[int], relaxed: Mapping[Site, Relaxed]
) -> Iterator[tuple[Site, list[str], int]]:
    """(a site, its faults, schedules simulated): of pairs that were not searched, by the devices that encode."""
    may = left(asked, asked.file.prediction.queries_per_s * (1 + SAME))
    for first, end in asked.pairs.spans():
        record = relaxed.get(("WAA", first))
        others = [number for number in range(first, end) if number not in searched]
        if (0 if record is None else record.number) != len(others):
            said = "none" if record is None else f"{record.number}"
            yield ("WAA", first), [f"{len(others)} pairs not searched, {said} bounded"], 0
        for number in others:
            if record is not None and (may[number] or number == others[0]):
                space = Waa(asked, number)
                leaf = LeafRecord(block=space.whole, reason="throughput", bound=record.throughput)
                yield ("WAA", number), _faults(asked, space, leaf), space.simulated


def _gaps(whole: Corners, said: Corners, leaves: Sequence[LeafRecord]) -> Iterator[str]:
    """How leaves fail to be the whole space, each schedule once."""
    x1, x2, y1, y2 = whole
    if said != whole:
        yield f"its knobs are {whole} by the inputs, not {said}"
    times = np.zeros((x2 + 2, y2 + 2), dtype=np.int32)
    for leaf in leaves:
        a, b, c, d = leaf.block
        if not is_in(leaf.block, whole):
            yield f"leaf {leaf.block} is no part of it"
        else:
            times[a : b + 1, c : d + 1] += 1
    inside = times[x1 : x2 + 1, y1 : y2 + 1]
    for count, what in ((inside == 0).sum(), "no leaf"), ((inside > 1).sum(), "several leaves"):
        if count:
            yield f"{count} schedules are in {what}"


def _faults(asked: Question, space: Space, leaf: LeafRecord) -> list[str]:
    """What is wrong with a leaf."""
    best, bound_s = asked.file.prediction.queries_per_s, asked.file.bound.reference_s
    bound, found = leaf.bound, []
    if not is_in(leaf.block, space.whole):
        return []  # _gaps says so; or there is no table or memory for any schedule
    must_beat = best * (1 + SAME)
    if leaf.reason not in ("throughput", "latency", "evaluated"):
        must_beat, bound_s = 0.0, np.inf  # nothing may fit
    if leaf.reason == "throughput" and bound > must_beat:
        found.append(f"{bound:g} queries/s does not settle it, the winner has {best:g}")
    if leaf.reason == "latency" and bound <= bound_s:
        found.append(f"{bound:g} s does not settle it, the bound is {bound_s:g} s")
    for point in space.unsettled(leaf.block, must_beat, bound_s):
        if space.fits(*point) and (rate := space.rate(*point)) > must_beat:
            promised_s = space.promised_s(*point)
            if asked.keeps(promised_s) or np.isinf(bound_s):
                found.append(f"{point} has {rate:g} queries/s and promises {promised_s:g} s")
                break
    for point in space.ends(leaf.block):
        rate, promised_s = space.rate(*point), space.promised_s(*point)
        is_kept = asked.keeps(promised_s)
        if leaf.reason == "throughput" and is_kept and rate > bound * (1 + SAME):
            found.append(f"{point} has {rate:g} queries/s, more than its bound of {bound:g}")
        if leaf.reason == "latency" and promised_s < bound * (1 - SAME):
            found.append(f"{point} promises {promised_s:g} s, less than its bound of {bound:g}")
    return found
