"""`exegpt serve` as a user runs it: a process of its own, a real worker, the official client."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from cli.manifests import write_manifest
from cli.small_model import write_small_model
from cli.tables import store_table
from exegpt_cli.bench.report import BenchReport
from exegpt_cli.cache import Cache
from exegpt_cli.output import Format
from exegpt_cli.own_server import Announcement
from exegpt_cli.update import run_update
from exegpt_cli.update_options import UpdateOptions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SAID_S = 60.0  # what a process gets to end


@dataclass
class Server:
    """A running `exegpt serve`."""

    process: subprocess.Popen[bytes]
    announced: Announcement
    stderr: Path

    @property
    def workers(self) -> list[psutil.Process]:
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [each for each in children if "exegpt_runner.worker" in " ".join(each.cmdline())]

    def client(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.announced.url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    for num_workers in (1, 2):
        store_table(Cache(folder), model, "float32", num_workers)
    return folder


@pytest.fixture
def start(tmp_path: Path, model: Path, cache: Path) -> Iterator[Callable[..., Server]]:
    """Starts a server; it has ended when the test has, however that ended."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(**changes: Any) -> Server:
        changes = {"model__dtype": "float32", "latencyBound__seconds": 0.15} | changes
        file = write_manifest(tmp_path, model, **changes)
        stderr = tmp_path / "stderr"
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "exegpt_cli.main", "serve", "-f", str(file), "--port", "0"]
        command += ["--control", control_address(tmp_path)]
        with stderr.open("wb") as said:
            process = subprocess.Popen(
                [*command, "--announce-fd", str(writing)],
                stderr=said,
                pass_fds=(writing,),
                env=os.environ | {"EXEGPT_CACHE": str(cache)},
                start_new_session=True,
            )
        started.append(process)
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8") as pipe:
            line = pipe.readline()
        assert line, f"exit code {process.wait(SAID_S)}: {stderr.read_text()}"
        return Server(process, Announcement.model_validate(json.loads(line)), stderr)

    yield launch
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


def control_address(folder: Path) -> str:
    return f"unix://{folder}/control.sock"


def streamed(
    client: openai.OpenAI, num: int, *, meanwhile: Callable[[int], None] = lambda chunks: None
) -> str:
    """The text of a streamed answer of `num` tokens; `meanwhile` hears how many chunks have come."""
    pieces: list[str] = []
    with client.completions.create(
        model="small",
        prompt="Once upon a time",
        max_tokens=num,
        temperature=0,
        stream=True,
        extra_body={"ignore_eos": True, "min_tokens": num},
    ) as stream:
        for chunk in stream:
            pieces += [choice.text for choice in chunk.choices]
            meanwhile(len(pieces))
    return "".join(pieces)


def assert_gone(processes: list[psutil.Process]) -> None:
    gone, alive = psutil.wait_procs(processes, timeout=SAID_S)
    assert not alive, [each.cmdline() for each in alive]
    assert len(gone) == len(processes)


def test_a_start_says_what_it_waits_for(start: Callable[..., Server]) -> None:
    said = start().stderr.read_text().splitlines()
    assert said == ["Planning ...", "Loading the weights of small ..."]


def test_a_stream_goes_on_through_its_workers_death_and_ctrl_c_leaves_nothing(
    start: Callable[..., Server],
) -> None:
    server = start()
    client = server.client()
    chat = client.chat.completions.create(
        model="small", messages=[{"role": "user", "content": "Hello"}], max_tokens=5
    )
    assert chat.usage is not None
    assert chat.usage.completion_tokens <= 5
    undisturbed = streamed(client, 300)
    first = server.workers
    assert len(first) == 1

    def kill_once(chunks: int) -> None:
        if chunks == 20:
            first[0].kill()

    assert streamed(client, 300, meanwhile=kill_once) == undisturbed
    second = server.workers
    assert [each.pid for each in second] != [each.pid for each in first]
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(SAID_S) == 0
    assert_gone([*first, *second])


WAA: dict[str, Any] = {
    "cluster__gpus": 2,
    "scheduling__strategies": ["WAA"],
    "latencyBound__seconds": 3,
}


@pytest.mark.parametrize("worker", [0, 1], ids=["encoder", "decoder"])
def test_a_stream_of_waa_goes_on_while_either_side_dies(
    start: Callable[..., Server], worker: int
) -> None:
    server = start(**WAA)
    assert server.announced.plan.schedule.strategy == "WAA"
    client = server.client()
    undisturbed = streamed(client, 300)
    first = sorted(server.workers, key=lambda each: each.create_time())
    assert len(first) == 2

    def kill_once(chunks: int) -> None:
        if chunks == 20:
            first[worker].kill()

    assert streamed(client, 300, meanwhile=kill_once) == undisturbed
    assert streamed(client, 20) == undisturbed[: len(streamed(client, 20))]
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(SAID_S) == 0
    assert_gone(first)


def test_draining_finishes_what_runs_and_refuses_what_comes(start: Callable[..., Server]) -> None:
    server = start()
    client = server.client()
    workers = server.workers
    refused: list[int] = []

    def drain(chunks: int) -> None:
        if chunks == 5:
            server.process.send_signal(signal.SIGTERM)
        if chunks > 5 and not refused:
            body = {"model": "small", "prompt": "x", "max_tokens": 1}
            code = httpx.post(f"{server.announced.url}/completions", json=body).status_code
            if code != httpx.codes.OK:
                refused.append(code)

    text = streamed(client, 400, meanwhile=drain)
    assert len(text) > 100
    assert refused == [503]
    assert server.process.wait(SAID_S) == 0
    assert_gone(workers)


def test_an_edited_manifest_is_followed_in_place(
    start: Callable[..., Server], tmp_path: Path, model: Path
) -> None:
    server = start()
    client = server.client()
    undisturbed = streamed(client, 400)
    workers = server.workers

    def bound_s() -> float:
        text = httpx.get(server.announced.metrics_url).text
        return float(re.findall(r"^exegpt_bound_seconds (.*)$", text, re.MULTILINE)[0])

    def said(words: str) -> None:
        deadline = time.monotonic() + SAID_S
        while words not in server.stderr.read_text():
            assert time.monotonic() < deadline, server.stderr.read_text()
            time.sleep(0.05)

    def edit(chunks: int) -> None:
        if chunks == 5:
            write_manifest(tmp_path, model, model__dtype="float32", latencyBound__seconds=0.2)
            said("in force from now")

    assert streamed(client, 400, meanwhile=edit) == undisturbed
    assert bound_s() == 0.2
    write_manifest(tmp_path, model, model__dtype="float64", latencyBound__seconds=0.3)
    said("spec.model: changed while it is served; restart exegpt serve for it")
    write_manifest(tmp_path, model, model__dtype="float32", latencyBound__seconds=1e-6)
    said("no schedule")
    assert bound_s() == 0.2
    assert streamed(client, 400) == undisturbed
    assert [each.pid for each in server.workers] == [each.pid for each in workers]


def test_knobs_and_strategies_change_over_rpc_while_a_stream_goes_on(
    start: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = start()
    client = server.client()
    undisturbed = streamed(client, 300)
    workers = server.workers
    changes: dict[int, dict[str, Any]] = {  # by chunks received
        10: {"strategy": "RRA", "encode_batch": 2, "encode_interval": 5},
        25: {"encode_interval": 9},
        40: {"strategy": "CRA", "pool": 4, "chunk_tokens": 32},
        55: {"strategy": "RRA", "encode_batch": 1, "encode_interval": 3},
    }

    def change(chunks: int) -> None:
        for due in [each for each in changes if each <= chunks]:
            options = UpdateOptions(
                control=control_address(tmp_path), beyond_bound=True, **changes.pop(due)
            )
            run_update(options, output=Format.JSON)

    assert streamed(client, 300, meanwhile=change) == undisturbed
    said = capsys.readouterr().out
    assert [int(each) for each in re.findall(r'"revision": (\d+)', said)] == [2, 3, 4, 5]
    text = httpx.get(server.announced.metrics_url).text
    assert "exegpt_schedule_encode_interval_iterations 3.0" in text
    assert "exegpt_schedule_revision 5.0" in text
    assert [each.pid for each in server.workers] == [each.pid for each in workers]


def test_a_second_signal_ends_at_once(start: Callable[..., Server]) -> None:
    server = start()
    workers = server.workers

    def interrupt(chunks: int) -> None:
        if chunks in (3, 6):
            server.process.send_signal(signal.SIGINT)

    with pytest.raises((openai.APIError, httpx.HTTPError)):
        streamed(server.client(), 480, meanwhile=interrupt)
    server.process.wait(SAID_S)
    assert_gone(workers)


def test_a_killed_server_takes_its_worker_along(start: Callable[..., Server]) -> None:
    server = start()
    workers = server.workers
    server.process.kill()
    assert_gone(workers)


def test_bench_loads_a_server_of_its_own_and_sets_measured_beside_predicted(
    tmp_path: Path, model: Path, cache: Path
) -> None:
    file = write_manifest(tmp_path, model, model__dtype="float32", latencyBound__seconds=0.15)
    arguments = ["-f", str(file), "--duration", "4", "--warm-up", "1", "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "exegpt_cli.main", "bench", *arguments],
        env=os.environ | {"EXEGPT_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        check=True,
    )
    report = BenchReport.model_validate_json(done.stdout)
    assert report.clock == "encode start"
    assert report.num_failed == 0
    assert report.tokens_per_s > 0
    assert report.predicted is not None
    assert report.cycle_s is not None
    assert report.s99_within_bound is not None


def test_a_killed_bench_takes_server_and_worker_along(
    tmp_path: Path, model: Path, cache: Path
) -> None:
    file = write_manifest(tmp_path, model, model__dtype="float32", latencyBound__seconds=0.15)
    bench = subprocess.Popen(
        [sys.executable, "-m", "exegpt_cli.main", "bench", "-f", str(file), "--duration", "60"],
        env=os.environ | {"EXEGPT_CACHE": str(cache)},
    )
    try:
        family: list[psutil.Process] = []
        deadline = time.monotonic() + SAID_S
        while len(family) < 2 and time.monotonic() < deadline:
            family = psutil.Process(bench.pid).children(recursive=True)
            time.sleep(0.05)
        assert len(family) == 2  # a server and its worker
    finally:
        bench.kill()
        bench.wait()
    assert_gone(family)
