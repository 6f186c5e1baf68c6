"""A worker process without torch: describes itself and does nothing else. `--crash` ends it at once, with a word."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc

from exegpt_wire import PROTOCOL, worker_pb2, worker_pb2_grpc


class FakeWorker(worker_pb2_grpc.WorkerServicer):
    def Describe(  # noqa: N802 - the stub's name
        self, request: worker_pb2.DescribeRequest, context: grpc.ServicerContext
    ) -> worker_pb2.DescribeReply:
        cores = ",".join(str(core) for core in sorted(os.sched_getaffinity(0)))
        return worker_pb2.DescribeReply(
            protocol=PROTOCOL,
            incarnation=os.getpid(),
            device="cpu: fake",
            threads=1,
            versions={"cores": cores},
        )


def main() -> None:
    if "--crash" in sys.argv:
        print("first line\nno such device", file=sys.stderr)
        sys.exit(7)
    fake = FakeWorker()  # type: ignore[abstract]  # the calls left out are never made
    server = grpc.server(ThreadPoolExecutor(max_workers=2))
    worker_pb2_grpc.add_WorkerServicer_to_server(fake, server)
    server.add_insecure_port(sys.argv[-1])
    server.start()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main()
