"""A whole gateway, HTTP and conductor, in a process of its own: prints its port, serves until it is killed.

Its one argument is a JSON object: the model's folder, the workers' addresses, the schedule's fields.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from exegpt_gateway.app import build_app
from exegpt_gateway.conductor import Conductor
from exegpt_gateway.metrics import Metrics
from exegpt_gateway.served import ServedModel
from exegpt_gateway.server import serve
from exegpt_gateway.tokenizer import load_tokenizer
from exegpt_gateway.worker_link import WorkerLink
from exegpt_planner.errors import ExeGPTError
from exegpt_planner.schedule import WaaSchedule
from exegpt_wire import worker_pb2


def announce(_host: str, port: int) -> None:
    print(port, flush=True)


async def main(given: dict[str, Any]) -> int:
    kv_tokens = given["kv_tokens"]
    configure = worker_pb2.ConfigureRequest(
        model_path=given["model"], dtype="float64", kv_tokens=kv_tokens
    )
    metrics = Metrics(CollectorRegistry())
    conductor = Conductor(
        [WorkerLink(address, configure) for address in given["workers"]],
        schedule=WaaSchedule(**given["schedule"]),
        kv_tokens=kv_tokens,
        context=512,
        max_waiting=100,
        metrics=metrics,
    )
    served = ServedModel(
        name="tiny",
        tokenizer=load_tokenizer(Path(given["model"])),
        chat_template=None,
        context=512,
        vocab=given["vocab"],
        end_tokens=(2,),
        bos_token=None,
    )
    stop = asyncio.Event()
    app = build_app(conductor, served, metrics)
    serving = asyncio.create_task(
        serve(app, "127.0.0.1", 0, on_started=announce, stop=stop, drain_s=lambda: 5)
    )
    try:
        await conductor.run()
    except ExeGPTError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    finally:
        stop.set()
        await serving
    return 0


sys.exit(asyncio.run(main(json.loads(sys.argv[1]))))
