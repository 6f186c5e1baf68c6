from __future__ import annotations

from pathlib import Path

import pytest

from conductors import MakeWorker, Serve, build_conductor, collect_all, greedy
from exegpt_gateway.step_log import StepLog, read_step_log
from exegpt_planner.errors import InvalidSpec, Unavailable
from exegpt_planner.schedule import RraSchedule


async def test_the_log_tells_every_iteration_and_where_each_query_lived(
    make_worker: MakeWorker, serve: Serve, tmp_path: Path
) -> None:
    worker = await make_worker()
    worker.iteration_s = 0.25
    path = tmp_path / "steps.jsonl"
    with StepLog(path) as step_log:
        conductor = build_conductor(
            worker, RraSchedule(encode_batch=2, encode_interval=3), step_log=step_log
        )
        streams = [conductor.submit([n] * (n + 1), greedy(3 + n)) for n in range(3)]
        running = serve(conductor)
        await collect_all(streams)
        conductor.drain()
        await running

    steps = read_step_log(path)
    # encode 1 2 | decode: 1 ends, then 2 | encode 3 | three decodes | one more for its 5 tokens
    assert [each.sequence for each in steps.iterations] == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert [each.last for each in steps.iterations] == [False] * 3 + [True] + [False] * 3 + [
        True
    ] * 2
    assert [each.shape.encode_chunks for each in steps.iterations] == [2, 0, 0, 0, 1, 0, 0, 0, 0]
    assert [each.shape.decode_queries for each in steps.iterations] == [0, 2, 2, 1, 0, 1, 1, 1, 1]
    assert {each.wall_s for each in steps.iterations} == {0.25}
    lives = {each.query: each for each in steps.queries}
    assert [(lives[q].first_iteration, lives[q].last_iteration) for q in (1, 2, 3)] == [
        (0, 2),
        (0, 3),
        (4, 8),
    ]
    assert [(lives[q].input_tokens, lives[q].output_tokens) for q in (1, 2, 3)] == [
        (1, 3),
        (2, 4),
        (3, 5),
    ]
    first = lives[1]
    assert first.encode_started_s == streams[0].times.encode_started_s
    assert first.first_token_s - first.encode_started_s == pytest.approx(0.25)


def test_a_log_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"cannot write the step log .*missing/steps.jsonl"):
        StepLog(tmp_path / "missing" / "steps.jsonl")


async def test_a_full_disk_ends_the_log_and_not_the_serving(
    make_worker: MakeWorker, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    step_log = StepLog(Path("/dev/full"))
    worker = await make_worker()
    conductor = build_conductor(
        worker, RraSchedule(encode_batch=8, encode_interval=64), step_log=step_log
    )
    streams = [conductor.submit([n], greedy(700)) for n in range(8)]
    serve(conductor)
    assert [len(tokens) for tokens in await collect_all(streams)] == [700] * 8
    step_log.close()
    assert [record.message for record in caplog.records] == ["step log ends early"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "not a step log record"),
        ("[]", "not a step log record"),
        ('{"kind": "iteration"}', "not a step log record"),
        ('{"kind": "other"}', "unknown kind 'other'"),
    ],
)
def test_a_broken_log_is_refused_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "steps.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(InvalidSpec, match=f"line 1: .*{problem}"):
        read_step_log(path)
