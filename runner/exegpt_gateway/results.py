"""What an iteration's result means for the queries of its worker's pool."""

from __future__ import annotations

from exegpt_gateway.lane import Step
from exegpt_gateway.ledger import Ledger
from exegpt_gateway.messages import FINISH
from exegpt_gateway.pool import Pool
from exegpt_wire import worker_pb2


def note_encodes(
    step: Step, pool: Pool, index: int, result: worker_pb2.IterationResult, at_s: float
) -> None:
    """Notes the step's chunks as encoded in iteration `index`, whose result came at `at_s`."""
    for chunk in step.plan.chunks:
        query = pool.encoded(chunk)
        if query is not None and query.first_iteration is None:
            query.first_iteration = index
            engine_s = result.clocks.wall_s - result.clocks.between_s
            query.stream.times.encode_started_s = at_s - engine_s


def give_tokens(
    step: Step,
    pool: Pool,
    ledger: Ledger,
    index: int,
    result: worker_pb2.IterationResult,
    at_s: float,
) -> bool:
    """Gives the tokens to their queries; whether one has ended."""
    has_ended = False
    for token in result.tokens:
        taken = pool.took(token.query, token.token)
        if taken is None:
            step.overrun.add(token.query)
            continue
        taken.last_iteration = index
        finish = FINISH[token.finish]
        ledger.token(taken, token.token, finish, at_s)
        if finish is not None:
            pool.finish(taken)
            has_ended = True
    return has_ended
