"""The real worker service, counting what it is asked to time, for tests in its process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import grpc

from exegpt_runner.service import WorkerService
from exegpt_wire import worker_pb2 as pb


class CountingService(WorkerService):
    """Remembers the ids of the steps it was asked to time."""

    def __init__(self) -> None:
        super().__init__(threads=1)
        self.measured: list[int] = []

    def Measure(  # noqa: N802 (the stub's name)
        self, request: pb.MeasureRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.Measurement]:
        self.measured += [shape.id for shape in request.shapes]
        return super().Measure(request, context)


@dataclass(frozen=True)
class Server:
    address: str
    service: CountingService
    measured: list[int] = field(default_factory=list)
