"""A gateway pod: HTTP and conductor for one replica, by the file that the operator keeps current.

Starts at once and waits for its workers, which come and go; once it has been ready it stays so, and holds queries while
workers are gone. SIGTERM drains: new queries get 503, running answers finish. Plans reach it through its control port.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from exegpt_cli.foresee import foresee, promise
from exegpt_cli.served import served_model
from exegpt_gateway.app import build_app
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.control import listening
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.self_test import SelfTest
from exegpt_gateway.server import serve
from exegpt_gateway.steering import Foreseen, OtherLengths, Refused, Steering
from exegpt_gateway.worker_link import WorkerLink
from exegpt_planner.errors import ExeGPTError, InvalidSpec
from exegpt_planner.model_spec import read_model_spec
from exegpt_planner.plan import Plan
from exegpt_planner.proof import workload_sha256
from exegpt_planner.serving import Serving, drain_s
from exegpt_planner.strict import read_json
from exegpt_planner.workload import read_workload
from exegpt_wire import worker_pb2
from exegpt_wire.token import read_token

REPLICA = "EXEGPT_REPLICA"  # the pod's ordinal
CALIBRATE_EVERY_S = 1.0
MOST_WAITING = 4096
LEAST_TEST_S = 30.0  # for the test query: the first step compiles


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until told to end; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        serving = read_json(Serving, options.config)
        replica = _replica(serving)
        token = read_token(options.token_file)
        asyncio.run(_Gateway(serving, replica, token).run(options))
    except ExeGPTError as error:
        print(f"exegpt gateway: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _replica(serving: Serving) -> int:
    text = os.environ.get(REPLICA, "0")
    if not text.isdecimal() or int(text) >= len(serving.replicas):
        problem = f"{text!r} is not one of the {len(serving.replicas)} replicas, counted from 0"
        raise InvalidSpec(REPLICA, [problem])
    return int(text)


class _Gateway:
    """One replica's gateway from its start to its end."""

    def __init__(self, serving: Serving, replica: int, token: str) -> None:
        folder = Path(serving.model_path)
        self._serving, self._token = serving, token
        self._model = read_model_spec(folder)
        self._served = served_model(folder, self._model, serving.served_name)
        self._workload = read_workload(serving.workload, self._model.context)
        plan = serving.plan
        self._metrics = Metrics(CollectorRegistry(), promise(plan, serving.table, self._workload))
        configure = worker_pb2.ConfigureRequest(
            model_path=serving.model_path,
            dtype=serving.dtype,
            kv_tokens=plan.kv_tokens_capacity,
            calibrate_every_s=CALIBRATE_EVERY_S,
        )
        self._conductor = Conductor(
            [WorkerLink(address, configure, token=token) for address in serving.replicas[replica]],
            schedule=plan.schedule,
            kv_tokens=plan.kv_tokens_capacity,
            context=self._model.context,
            max_waiting=MOST_WAITING,
            metrics=self._metrics,
        )
        self._steering = Steering(
            self._conductor,
            plan,
            model_fingerprint=serving.table.key.model_fingerprint,
            foresee=self._foresee,
            takes_lengths=True,
            plan_id=serving.plan_id,
        )
        self._self_test = SelfTest(
            self._conductor,
            token=0 if self._model.bos_token is None else self._model.bos_token,
            within_s=max(LEAST_TEST_S, plan.bound.seconds),
        )
        self._stop = asyncio.Event()

    async def run(self, options: argparse.Namespace) -> None:
        """Serves until SIGTERM, or until a worker refuses what no retry mends."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._drain)
        conducting = asyncio.create_task(self._conductor.run())
        conducting.add_done_callback(lambda _: self._stop.set())
        testing = asyncio.create_task(self._self_test.run())
        testing.add_done_callback(self._tested)
        app = build_app(
            self._conductor,
            self._served,
            self._metrics,
            ready_once=lambda: self._conductor.is_settled and self._self_test.has_passed,
        )
        try:
            async with listening(
                self._steering, options.control, token=self._token, self_test=self._self_test
            ):
                await serve(
                    app,
                    options.host,
                    options.port,
                    on_started=lambda _host, _port: None,
                    stop=self._stop,
                    drain_s=lambda: drain_s(self._steering.plan.bound.seconds),
                )
        finally:
            for task in (testing, conducting):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await conducting  # raises what ended it, if that was no signal
            with contextlib.suppress(asyncio.CancelledError):
                await testing

    def _tested(self, _: asyncio.Task[None]) -> None:
        if not self._self_test.has_passed:  # it ended by an error, and this will never be ready
            self._stop.set()

    def _drain(self) -> None:
        self._conductor.drain()
        self._stop.set()

    def _foresee(self, plan: Plan, lengths: OtherLengths | None) -> Foreseen:
        """The plan on this gateway's table, for the lengths that it was made for."""
        workload = self._workload
        if lengths is not None:
            workload = read_workload(lengths.workload, self._model.context)
        if workload_sha256(workload) != plan.certificate.inputs.workload:
            problem = "the lengths of the plan are not those that came with it. Plan again."
            raise Refused("unfit", problem)
        return foresee(plan, self._serving.table, workload)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="exegpt_cli.pods.gateway", description="One gateway.")
    parser.add_argument("--config", type=Path, required=True, help="exegpt.serving/v1, JSON")
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")
    parser.add_argument("--port", type=int, default=8000, help="of the OpenAI API")
    parser.add_argument("--control", required=True, help="host:port that the operator calls")
    parser.add_argument("--token-file", type=Path, required=True, help="the deployment's token")
    return parser


if __name__ == "__main__":
    sys.exit(main())
