"""A search in a process of its own: whatever becomes of the process, the next search has a fresh one."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from exegpt_operator.planner_process import Planner
from exegpt_operator.planning import Question, plan
from operating.test_planning import QUESTION


def command(script: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"import json, os, signal, sys, time; {script}")


async def test_the_process_answers_as_the_function_does() -> None:
    planner = Planner()
    first = await planner.start()
    answer = await planner(QUESTION)
    assert answer == plan(QUESTION)
    assert answer.plan
    other = replace(QUESTION, bound_s=2 * QUESTION.bound_s)
    assert (await planner(other)).inputs == other.inputs
    assert await planner.start() is first, "one process for many questions"
    await planner.close()


async def test_a_question_asked_again_is_not_searched_again(tmp_path: Path) -> None:
    count = tmp_path / "count"
    script = f"""
for line in sys.stdin:
    open({str(count)!r}, "a").write("x")
    print(json.dumps({{"inputs": json.loads(line)["inputs"], "plan": "p"}}), flush=True)"""
    planner = Planner(command(script))
    answers = [await planner(QUESTION) for _ in range(3)]
    assert {answer.plan for answer in answers} == {"p"}
    assert count.read_text() == "x"
    await planner(replace(QUESTION, bound_s=77.0))
    assert count.read_text() == "xx"
    await planner.close()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "killed, as the kernel does where"),
        ("os.kill(os.getpid(), signal.SIGTERM)", "ended by SIGTERM"),
        ("{}['KeyOfABug']", "KeyError: 'KeyOfABug'"),
        ("sys.exit(3)", "status 3, it said nothing"),
        ("print('hello', flush=True); sys.stdin.read()", "answered what it was not asked"),
        ('print(json.dumps({"inputs": "x"}), flush=True); sys.stdin.read()', "was not asked"),
        ("time.sleep(60)", "had not ended after 0.5 s"),
    ],
)
async def test_a_process_that_fails_is_a_refusal_with_the_cause(script: str, words: str) -> None:
    planner = Planner(command(script), limit_s=0.5 if "sleep" in script else 30.0)
    answer = await planner(QUESTION)
    await planner.close()
    assert (answer.reason, answer.inputs) == ("PlanFailed", QUESTION.inputs)
    assert words in answer.message


async def test_after_one_that_was_killed_the_next_answers(tmp_path: Path) -> None:
    once = tmp_path / "once"
    script = (
        f"\nif not os.path.exists({str(once)!r}):\n"
        f"    open({str(once)!r}, 'w').close(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "asked = json.loads(sys.stdin.readline())\n"
        "print(json.dumps({'inputs': asked['inputs'], 'plan': 'p'}), flush=True)"
    )
    planner = Planner(command(script))
    assert (await planner(QUESTION)).reason == "PlanFailed"
    assert (await planner(QUESTION)).plan == "p"
    await planner.close()


async def test_one_search_at_a_time_and_none_is_left_behind(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"open({str(pid)!r}, 'x').write(str(os.getpid())); time.sleep(60)"
    planner = Planner(command(script))

    async def search(question: Question) -> None:
        await planner(question)

    first = asyncio.create_task(search(QUESTION))
    second = asyncio.create_task(search(QUESTION))  # would fail: the file is there
    async with asyncio.timeout(20):
        while not (pid.exists() and pid.read_text()):
            await asyncio.sleep(0.01)
    second.cancel()
    first.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    assert first.cancelled()
    assert not Path(f"/proc/{pid.read_text()}").exists()
