"""One short query through everything, before anyone's depends on it."""

from __future__ import annotations

import asyncio

from exegpt_gateway.conductor import Conductor
from exegpt_gateway.query import SamplingParams
from exegpt_planner.errors import ExeGPTError

PROMPT_TOKENS, ANSWER_TOKENS = 8, 4


async def self_test(conductor: Conductor, *, token: int, within_s: float) -> str:
    """Why a query of `PROMPT_TOKENS` times `token` is not answered; empty if it is. What is observed forgets it."""
    sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    asked = f"a query of {PROMPT_TOKENS} tokens"
    try:
        stream = conductor.submit([token] * PROMPT_TOKENS, sampling)
        async with asyncio.timeout(within_s):
            answer = [event.token async for event in stream]
    except TimeoutError:
        stream.cancel()
        return f"{asked} is not answered within {within_s:g} s"
    except ExeGPTError as error:
        return f"{asked} failed: {error}"
    finally:
        conductor.metrics.forget_observed()
    return "" if len(answer) == ANSWER_TOKENS else f"{asked} got {len(answer)} tokens"
