"""One short query through everything, before anyone's depends on it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import ClassVar

from exegpt_gateway.conductor import Conductor
from exegpt_gateway.query import SamplingParams
from exegpt_planner.errors import ExeGPTError

PROMPT_TOKENS, ANSWER_TOKENS = 8, 4


@dataclass(slots=True)
class SelfTest:
    """Asks once every worker is there, until it is answered; what is observed forgets it."""

    POLL_S: ClassVar[float] = 0.2
    AGAIN_S: ClassVar[float] = 5.0  # after a failure

    conductor: Conductor
    token: int  # of which the prompt is made
    within_s: float
    has_passed: bool = False
    problem: str = ""  # of the latest try

    async def run(self) -> None:
        """Until it has passed."""
        while not self.has_passed:
            if self.conductor.is_settled:
                self.problem = await self._ask()
                self.has_passed = not self.problem
            await asyncio.sleep(self.AGAIN_S if self.problem else self.POLL_S)

    async def _ask(self) -> str:
        """Why the query is not answered; empty if it is."""
        sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
        asked = f"a query of {PROMPT_TOKENS} tokens"
        try:
            stream = self.conductor.submit([self.token] * PROMPT_TOKENS, sampling)
            async with asyncio.timeout(self.within_s):
                answer = [event.token async for event in stream]
        except TimeoutError:
            stream.cancel()
            return f"{asked} is not answered within {self.within_s:g} s"
        except ExeGPTError as error:
            return f"{asked} failed: {error}"
        finally:
            self.conductor.metrics.forget_observed()
        return "" if len(answer) == ANSWER_TOKENS else f"{asked} got {len(answer)} tokens"
