"""Plans as messages to the worker, and its words as ours (worker.proto)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from exegpt_gateway.backlog import Query
from exegpt_gateway.hand_overs import Transfer
from exegpt_gateway.policies import StepPlan
from exegpt_gateway.pool import Pool
from exegpt_gateway.query import Finish
from exegpt_gateway.worker_link import Place
from exegpt_planner.profile_table import StepShape
from exegpt_wire import worker_pb2

FINISH: dict[worker_pb2.Finish.ValueType, Finish | None] = {
    worker_pb2.NONE: None,
    worker_pb2.STOP: "stop",
    worker_pb2.LENGTH: "length",
}


HAND_OVER_S = 30.0  # a transfer takes milliseconds; one that takes so long is given up, and its queries encoded again
PROBE_BYTES = 1 << 20

_SHAPE = fields(StepShape)


def step_command(plan: StepPlan, sequence: int, pool: Pool) -> worker_pb2.Command:
    """The step for `plan`, whose chunks' queries the pool has begun."""
    step = worker_pb2.Step(
        sequence=sequence,
        decode_with_chunks=plan.decode_with_chunks,
        decode_iterations=plan.decode_iterations,
        retain_ended=plan.retain_ended,
    )
    for chunk in plan.chunks:
        query = pool.partial[chunk.query]
        step.chunks.add(
            query=chunk.query,
            tokens=query.text[chunk.start : chunk.start + chunk.tokens],
            start=chunk.start,
            last=chunk.is_last,
            sampling=_sampling(query) if chunk.start == 0 else None,
            num_generated=len(query.generated),
        )
    return worker_pb2.Command(step=step)


def add_join(step: worker_pb2.Step, transfer: Transfer) -> None:
    """Has the queries of `transfer`, whose KV is there, begin to decode with `step`."""
    join = step.joins.add(transfer=transfer.id)
    for query in transfer.queries.values():
        join.queries.add(
            query=query.id,
            token=query.generated[-1],
            num_generated=len(query.generated),
            sampling=_sampling(query),
        )


def add_hand_over(step: worker_pb2.Step, transfer: Transfer, target: Place) -> None:
    """Has the queries of `transfer`, which `step` encodes, go on to `target`."""
    _hand_over(step, transfer.id, target).queries.extend(transfer.queries)


def add_probe(step: worker_pb2.Step, transfer: int, target: Place) -> None:
    """Has `step` try the way to `target`."""
    _hand_over(step, transfer, target).probe_bytes = PROBE_BYTES


def _hand_over(step: worker_pb2.Step, transfer: int, target: Place) -> worker_pb2.HandOver:
    return step.hand_overs.add(
        transfer=transfer,
        address=target.address,
        incarnation=target.incarnation,
        epoch=target.epoch,
        deadline_s=HAND_OVER_S,
    )


def drop_command(queries: Sequence[int], transfers: Sequence[int]) -> worker_pb2.Command:
    """Has the worker forget these."""
    return worker_pb2.Command(drop=worker_pb2.Drop(queries=queries, transfers=transfers))


def shape_of(message: worker_pb2.Shape) -> StepShape:
    """The shape of an iteration."""
    return StepShape(**{each.name: getattr(message, each.name) for each in _SHAPE})


def _sampling(query: Query) -> worker_pb2.Sampling:
    asked = query.sampling
    return worker_pb2.Sampling(
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        seed=asked.seed,
        max_tokens=query.max_tokens,
        min_tokens=asked.min_tokens,
        ignore_eos=asked.ignore_eos,
        end_tokens=asked.end_tokens,
    )
