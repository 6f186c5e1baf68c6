"""`exegpt update`: another schedule for a running gateway, from its next step on.

Knobs are changes to the schedule in force: that is fetched first, and the change holds only while it is still in
force, so that two who turn knobs at once do not undo each other.
"""

from __future__ import annotations

import json
from typing import Any, Literal, NoReturn

import grpc

from exegpt_cli.output import Format, answer
from exegpt_cli.summary import knobs as in_words
from exegpt_cli.update_options import UpdateOptions
from exegpt_planner.errors import ExeGPTError, IncompleteProfile, InvalidSpec, Unavailable
from exegpt_planner.plan import Plan
from exegpt_planner.schedule import Prediction, Schedule
from exegpt_planner.strict import StrictModel, parse_json, read_json
from exegpt_wire import GRPC_OPTIONS, gateway_pb2, message_of
from exegpt_wire.gateway_pb2_grpc import GatewayStub
from exegpt_wire.token import bearer, read_token

CALL_S = 60.0  # predicting a schedule takes a second on a slow core
OF = {  # the knobs of each strategy
    "RRA": ("encode_batch", "encode_interval"),
    "CRA": ("pool", "chunk_tokens"),
    "WAA": ("encoders", "decoders", "encode_batch", "pool"),
}


class Update(StrictModel):
    """What a change brought (docs/formats.md)."""

    version: Literal["exegpt.update/v1"] = "exegpt.update/v1"
    revision: int
    after_iterations: int
    schedule: Schedule
    prediction: Prediction
    previous: Schedule


def run_update(options: UpdateOptions, *, output: Format) -> None:
    """Change the schedule, and say what is in force."""
    if bool(options.plan) == bool(options.knobs or options.strategy):
        raise InvalidSpec("update", ["give either --plan FILE or knobs such as --n-d 13"])
    metadata = bearer(None if options.token is None else read_token(options.token))
    with grpc.insecure_channel(options.control, options=list(GRPC_OPTIONS)) as channel:
        stub = GatewayStub(channel)
        try:
            request = _request(options, stub, metadata)
            reply = stub.UpdateSchedule(request, timeout=CALL_S, metadata=metadata)
        except grpc.RpcError as error:
            _explain(options.control, error)
    plan = parse_json(Plan, reply.plan_json, source=options.control)
    update = Update(
        revision=reply.revision,
        after_iterations=reply.after_iterations,
        schedule=plan.schedule,
        prediction=plan.prediction,
        previous=parse_json(Plan, reply.previous_json, source=options.control).schedule,
    )
    answer(update.model_dump_json(indent=2) if output is Format.JSON else _text(update, plan))


def _request(
    options: UpdateOptions, stub: GatewayStub, metadata: tuple[tuple[str, str], ...]
) -> gateway_pb2.UpdateScheduleRequest:
    if options.plan is not None:
        plan = read_json(Plan, options.plan)
        return gateway_pb2.UpdateScheduleRequest(
            plan_json=plan.model_dump_json(), beyond_bound=options.beyond_bound
        )
    there = stub.Describe(gateway_pb2.DescribeRequest(), timeout=CALL_S, metadata=metadata)
    now = parse_json(Plan, there.plan_json, source=options.control).schedule
    return gateway_pb2.UpdateScheduleRequest(
        schedule_json=json.dumps(changed(now, options, num_workers=there.num_workers)),
        if_revision=there.revision,
        beyond_bound=options.beyond_bound,
    )


def changed(schedule: Schedule, options: UpdateOptions, *, num_workers: int) -> dict[str, Any]:
    """The schedule with the knobs given."""
    strategy = options.strategy or schedule.strategy
    if strategy not in OF:
        raise InvalidSpec("--strategy", [f"{strategy!r} is not one of {', '.join(OF)}"])
    known = OF[strategy]
    foreign = [name for name in options.knobs if name not in known]
    if foreign:
        problems = [
            f"{name} is no knob of {strategy}; it has {', '.join(known)}" for name in foreign
        ]
        raise InvalidSpec("update", problems)
    same = strategy == schedule.strategy
    now = schedule.model_dump(exclude={"adjustment"}) if same else {}
    values = {**{name: now[name] for name in known if name in now}, **options.knobs}
    missing = [name for name in known if name not in values]
    if missing:
        problems = [f"{strategy} also needs {name}, which is not in force" for name in missing]
        raise InvalidSpec("update", problems)
    units = {} if strategy == "WAA" else {"units": num_workers}
    return {"strategy": strategy, **values, **units}


def _text(update: Update, plan: Plan) -> str:
    expected = update.prediction
    return "\n".join(
        [
            f"In force  {in_words(update.schedule)} (revision {update.revision}, from the next step)",
            f"Before    {in_words(update.previous)}",
            f"Promised  {expected.promised_s:.2f} s; the bound is {plan.bound.seconds:g} s",
            f"Expected  {expected.queries_per_s:.2f} queries/s, {expected.tokens_per_s:.0f} tokens/s under a backlog; "
            f"cycle {expected.cycle_s * 1e3:.1f} ms; {expected.pool_mean:.1f} queries in decode",
        ]
    )


def _explain(address: str, error: grpc.RpcError) -> NoReturn:
    # grpc raises its calls: they carry a status, though RpcError itself does not say so.
    assert isinstance(error, grpc.Call), error
    said, code = message_of(error.details()), error.code()
    problem: ExeGPTError
    match code:
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.FAILED_PRECONDITION:
            problem = InvalidSpec(address, [said])
        case grpc.StatusCode.OUT_OF_RANGE:
            problem = IncompleteProfile(said)
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.DEADLINE_EXCEEDED:
            problem = Unavailable(
                f"no answer from {address}: {said} Check that exegpt serve runs with --control {address}."
            )
        case _:
            problem = Unavailable(f"{address} refuses: {code.name}: {said}")
    raise problem from None
