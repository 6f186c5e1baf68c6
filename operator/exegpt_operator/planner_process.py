"""A process a search: whatever ends it, a bug, the kernel where memory runs out, ends nothing else.

The next search has a fresh one, and memory goes back when it is over. One is started ahead, as loading what a search
needs takes longer than many a search.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict

from exegpt_operator.planning import Answer, Question
from exegpt_operator.reasons import Reason

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-m", "exegpt_operator.planning")
LIMIT_S = 900.0  # of one search, which takes seconds


class Planner:
    """Searches one at a time: a search takes a whole core and much memory."""

    def __init__(self, command: Sequence[str] = COMMAND, *, limit_s: float = LIMIT_S) -> None:
        """`command` reads a question as JSON and writes the answer as JSON."""
        self._command, self._limit_s = command, limit_s
        self._one = asyncio.Lock()
        self._ahead: asyncio.subprocess.Process | None = None

    async def start_ahead(self) -> None:
        """Has a process load what the next search needs."""
        if self._ahead is None:
            self._ahead = await self._started()

    async def close(self) -> None:
        """Ends the process that waits."""
        process, self._ahead = self._ahead, None
        if process is not None:
            await _end(process)

    async def __call__(self, question: Question) -> Answer:
        """The answer; a process that fails is a refusal with the cause. Ends the process if it is cancelled."""
        async with self._one:
            process, self._ahead = self._ahead or await self._started(), None
            try:
                async with asyncio.timeout(self._limit_s):
                    out, said = await process.communicate(json.dumps(asdict(question)).encode())
            except TimeoutError:
                return _failed(question, f"it had not ended after {self._limit_s:g} s", "")
            finally:
                await _end(process)
            await self.start_ahead()
        if process.returncode == 0:
            return Answer(**json.loads(out))
        words = said.decode(errors="replace").strip()
        return _failed(question, _cause(process.returncode or 0, words), words)

    async def _started(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


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
