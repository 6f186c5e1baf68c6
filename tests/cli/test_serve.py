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

import httpx
import openai
import psutil
import pytest

from cli.manifests import write_manifest
from cli.small_model import write_small_model
from cli.tables import store_table
from exegpt_cli.bench.report import BenchReport
from exegpt_cli.cache import Cache
from exegpt_cli.own_server import Announcement

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
    store_table(Cache(folder), model, "float32")
    return folder


@pytest.fixture
def start(tmp_path: Path, model: Path, cache: Path) -> Iterator[Callable[[], Server]]:
    """Starts a server; it has ended when the test has, however that ended."""
    started: list[subprocess.Popen[bytes]] = []

    def launch() -> Server:
        file = write_manifest(tmp_path, model, model__dtype="float32", latencyBound__seconds=0.15)
        stderr = tmp_path / "stderr"
        reading, writing = os.pipe()
        command = [sys.executable, "-m", "exegpt_cli.main", "serve", "-f", str(file), "--port", "0"]
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


def test_a_start_says_what_it_waits_for(start: Callable[[], Server]) -> None:
    said = start().stderr.read_text().splitlines()
    assert said == ["Planning ...", "Loading the weights of small ..."]


def test_a_stream_goes_on_through_its_workers_death_and_ctrl_c_leaves_nothing(
    start: Callable[[], Server],
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


def test_draining_finishes_what_runs_and_refuses_what_comes(start: Callable[[], Server]) -> None:
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
    start: Callable[[], Server], tmp_path: Path, model: Path
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


def test_a_second_signal_ends_at_once(start: Callable[[], Server]) -> None:
    server = start()
    workers = server.workers

    def interrupt(chunks: int) -> None:
        if chunks in (3, 6):
            server.process.send_signal(signal.SIGINT)

    with pytest.raises((openai.APIError, httpx.HTTPError)):
        streamed(server.client(), 480, meanwhile=interrupt)
    server.process.wait(SAID_S)
    assert_gone(workers)


def test_a_killed_server_takes_its_worker_along(start: Callable[[], Server]) -> None:
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
