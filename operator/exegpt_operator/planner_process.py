"""The planner's process: whatever ends it, a bug, the kernel where memory runs out, ends nothing else.

It answers one question after another, as loading what a search needs takes longer than many a search; one that has
ended is followed by a fresh one. An answer is a function of its question and nothing else, so the latest are kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict
from typing import IO

from exegpt_operator.planning import Answer, Question
from exegpt_operator.reasons import Reason

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "exegpt_operator.planning")
LIMIT_S = 900.0  # of one search, which takes seconds
ANSWER_BYTES = 1 << 26  # at most
REMEMBERED = 64


class Planner:
    """Searches one at a time: a search takes a whole core and much memory."""

    def __init__(self, command: Sequence[str] = COMMAND, *, limit_s: float = LIMIT_S) -> None:
        """`command` reads questions, a line of JSON each, and writes a line of JSON in answer to each."""
        self._command, self._limit_s = command, limit_s
        self._one = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._said: IO[bytes] | None = None  # its stderr
        self._answers: OrderedDict[str, Answer] = OrderedDict()  # by the question's inputs

    async def start(self) -> asyncio.subprocess.Process:
        """The process, which then loads what searches need; a fresh one if there is none."""
        async with self._one:
            return await self._running()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            await self.close()
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 - read when the process has ended
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=self._said,
                limit=ANSWER_BYTES,
            )
        return self._process

    async def close(self) -> None:
        """Ends the process."""
        process, self._process = self._process, None
        if process is not None:
            if process.returncode is None:
                process.kill()
            await process.communicate()  # waits, and closes its pipes
        if self._said is not None:
            self._said.close()
            self._said = None

    async def __call__(self, question: Question) -> Answer:
        """The answer; a process that fails is a refusal with the cause. Ends the process if it is cancelled."""
        async with self._one:
            if (known := self._answers.get(question.inputs)) is not None:
                self._answers.move_to_end(question.inputs)
                return known
            answer = await self._searched(question)
            if answer.reason != Reason.PLAN_FAILED:
                self._answers[question.inputs] = answer
                if len(self._answers) > REMEMBERED:
                    self._answers.popitem(last=False)
            return answer

    async def _searched(self, question: Question) -> Answer:
        try:
            process = await self._running()
        except OSError as error:
            return _failed(question, f"it cannot be started: {error}", "")
        is_done = False
        try:
            async with asyncio.timeout(self._limit_s):
                asked = {"inputs": question.inputs, **asdict(question)}
                line = await _exchange(process, json.dumps(asked).encode() + b"\n")
            is_done = bool(line)
        except TimeoutError:
            return _failed(question, f"it had not ended after {self._limit_s:g} s", "")
        finally:
            if not is_done:
                words = await self._ended(process)
        if not is_done:
            return _failed(question, _cause(process.returncode or 0, words), words)
        try:
            answer = Answer(**json.loads(line))
        except (ValueError, TypeError):
            answer = None
        if answer is None or answer.inputs != question.inputs:
            await self.close()
            return _failed(question, "it answered what it was not asked", "")
        return answer

    async def _ended(self, process: asyncio.subprocess.Process) -> str:
        """Waits for a process that answers no more, killing it if it only does not; what it said."""
        try:
            async with asyncio.timeout(1.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
        words = ""
        if self._said is not None:
            self._said.seek(0)
            words = self._said.read().decode(errors="replace").strip()
        await self.close()
        return words


async def _exchange(process: asyncio.subprocess.Process, question: bytes) -> bytes:
    """The answer's line; empty where the process has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(question)
        await process.stdin.drain()
        return await process.stdout.readline()
    except (BrokenPipeError, ConnectionResetError, ValueError):  # the last: beyond ANSWER_BYTES
        return b""


def _failed(question: Question, cause: str, said: str) -> Answer:
    log.error(
        "a search has failed", extra={"problem": cause, "inputs": question.inputs, "said": said}
    )
    return Answer(
        inputs=question.inputs,
        reason=str(Reason.PLAN_FAILED),
        message=f"The planner's process failed: {cause}.",
    )


def _cause(status: int, words: str) -> str:
    if status == -signal.SIGKILL:
        return "it was killed, as the kernel does where the operator's memory limit is reached"
    if status < 0:
        return f"it was ended by {signal.Signals(-status).name}"
    last = words.rpartition("\n")[2] or "it said nothing"
    return f"status {status}, {last.rstrip('.')}"
