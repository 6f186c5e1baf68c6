"""Steps over the wire: RRA's and CRA's shapes, drops, retained queries, evictions; none changes an answer."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import grpc
import pytest

from exegpt_wire import worker_pb2 as pb
from worker_client import Configure, Stream, chunk, outputs
from worker_process import WorkerProcess

PROMPTS = {1: [5, 9, 33, 70], 2: [8, 8, 61], 3: [44, 3, 12, 90, 17, 6]}


@pytest.fixture(scope="session")
def greedy(worker: WorkerProcess, model_dir: Path) -> dict[int, list[int]]:
    """What transformers answers to each prompt, 8 tokens."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(model_dir, dtype=torch.float64)
    answers = {}
    for query, prompt in PROMPTS.items():
        ids = model.generate(
            torch.tensor([prompt]), max_new_tokens=8, do_sample=False, eos_token_id=[]
        )
        answers[query] = ids[0, len(prompt) :].tolist()
    return answers


def test_a_phase_in_one_message_answers_each_iteration_once(
    stream: Stream, greedy: dict[int, list[int]]
) -> None:
    results = stream.step([chunk(q, p) for q, p in PROMPTS.items()], decode=7)
    assert len(results) == 8
    assert [result.last for result in results] == [False] * 7 + [True]
    assert outputs(results) == greedy
    assert [result.shape.decode_queries for result in results] == [0] + [3] * 7
    assert results[0].shape.tokens == 13
    assert results[0].shape.encode_pairs == 10 + 6 + 21
    assert results[3].shape.decode_context == 13 + 3 * 3
    assert results[-1].active == 0
    assert {token.finish for token in results[-1].tokens} == {pb.LENGTH}


def test_a_phase_ends_early_when_the_pool_empties(stream: Stream) -> None:
    results = stream.step([chunk(1, PROMPTS[1], max_tokens=3)], decode=100)
    assert len(results) == 3
    assert results[-1].last


def test_an_end_token_ends_a_query(stream: Stream, greedy: dict[int, list[int]]) -> None:
    results = stream.step([chunk(1, PROMPTS[1], end_tokens=[greedy[1][2]])], decode=100)
    stop = greedy[1].index(greedy[1][2]) + 1
    assert outputs(results)[1] == greedy[1][:stop]
    assert results[-1].tokens[0].finish == pb.STOP


def test_chunks_that_ride_on_decode_iterations_change_no_answer(
    stream: Stream, greedy: dict[int, list[int]]
) -> None:
    results = stream.step([chunk(1, PROMPTS[1])])
    for start in range(0, 6, 2):
        piece = chunk(3, PROMPTS[3][start : start + 2], start=start, last=start == 4)
        results += stream.step([piece], decode_with_chunks=True)
    results += stream.step([chunk(2, PROMPTS[2])], decode_with_chunks=True)
    results += stream.step(decode=20)
    assert outputs(results) == greedy
    assert results[1].shape.tokens == 1 + 2
    assert results[1].shape.encode_chunks == 1


def test_a_step_without_work_still_answers(stream: Stream) -> None:
    (result,) = stream.step(decode=5)
    assert result.last
    assert not result.tokens
    assert result.shape.tokens == 0


def test_a_drop_acts_inside_a_phase_that_is_running(stream: Stream) -> None:
    prompts = [chunk(q, p, max_tokens=500) for q, p in PROMPTS.items()]
    stream.send(prompts, decode=400)
    first = stream.read()
    assert first.active == 3
    stream.drop(1, 2)
    while (result := stream.read()).active == 3:
        assert not result.last
    assert result.active == 1
    while not result.last:
        assert [token.query for token in result.tokens] == [3]
        result = stream.read()


def test_a_drop_takes_back_chunks_that_are_queued(stream: Stream) -> None:
    stream.send([chunk(1, PROMPTS[1], max_tokens=500)], decode=200)
    queued = stream.send([chunk(2, PROMPTS[2])], decode=0)
    stream.drop(1, 2)
    results = [stream.read()]
    while results[-1].sequence != queued:
        results.append(stream.read())
    assert 2 not in outputs(results)
    assert results[-1].active == 0


def test_retained_queries_are_computed_until_all_have_ended(
    stream: Stream, greedy: dict[int, list[int]]
) -> None:
    prompts = [chunk(1, PROMPTS[1], max_tokens=2), chunk(2, PROMPTS[2], max_tokens=6)]
    results = stream.step(prompts, decode=100, retain_ended=True)
    assert [result.shape.decode_queries for result in results] == [0] + [2] * 5
    assert outputs(results) == {1: greedy[1][:2], 2: greedy[2][:6]}


def test_an_evicted_query_goes_on_when_it_is_encoded_again(
    worker: WorkerProcess, configure: Configure, greedy: dict[int, list[int]]
) -> None:
    configure(kv_tokens=128)  # two extents of 64 tokens
    with Stream.opened(worker.stub) as stream:
        long = list(range(10, 62))
        results = stream.step([chunk(1, long, max_tokens=40), chunk(2, PROMPTS[2])], decode=2)
        assert not any(result.evicted for result in results)
        results += stream.step([chunk(3, PROMPTS[3])])
        assert list(results[-1].evicted) == [3]
        results += stream.step(decode=100)
        assert outputs(results)[2] == greedy[2]
        again = PROMPTS[3] + greedy[3][:2]
        rest = stream.step([chunk(3, again, num_generated=2)], decode=100)
        assert outputs(rest)[3] == greedy[3][2:]


def test_clocks_account_for_the_whole_step(stream: Stream) -> None:
    results = stream.step([chunk(1, PROMPTS[1])], decode=7)
    for before, after in pairwise(result.clocks for result in results):
        assert 0 <= after.between_s <= after.wall_s
        engine_ended_s = before.start_s + before.wall_s - before.between_s
        waited_s = after.start_s - engine_ended_s
        assert 0 <= waited_s <= before.between_s + after.between_s + 1e-6


def test_the_calibration_kernel_runs_when_asked(
    worker: WorkerProcess, configure: Configure
) -> None:
    configure(calibrate_every_s=1e-6)
    with Stream.opened(worker.stub) as stream:
        results = stream.step([chunk(1, PROMPTS[1])], decode=7)
    assert len({result.clocks.kernel_s for result in results}) == 8
    assert all(1e-4 < result.clocks.kernel_s < 1 for result in results)


def test_a_chunk_out_of_order_is_refused_with_the_reason(stream: Stream) -> None:
    stream.send([chunk(1, [1, 2], last=False), chunk(1, [4, 5], start=7)])
    with pytest.raises(grpc.RpcError) as caught:
        stream.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "starts at 7, but 2 tokens" in str(caught.value.details())


def test_the_end_of_a_stream_releases_its_queries(
    worker: WorkerProcess, configure: Configure
) -> None:
    configure()
    with Stream.opened(worker.stub) as stream:
        stream.step([chunk(1, PROMPTS[1], max_tokens=99)], decode=2)
        stream.finish()
        assert list(stream.results) == []
    with Stream.opened(worker.stub) as stream:
        (result,) = stream.step(decode=1)
        assert result.active == 0
        assert result.kv_tokens == 0
