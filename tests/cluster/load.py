"""Load from inside the cluster, by the official client: runs in a pod of its own, with Python from standard input.

`python - URL MODEL STREAMS SECONDS PROMPT_WORDS MAX_TOKENS` keeps so many streams busy for so long, waits for the last
answers, and prints one JSON object: answers, failures (in words), and the seconds of the slowest.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

WORDS = ("river", "mountain", "letter", "garden", "winter", "engine", "harbour", "violin")


async def main(url: str, model: str, streams: int, seconds: float, words: int, tokens: int) -> None:
    """Runs the load and prints what came of it."""
    import openai

    client = openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=120.0)
    end_s = time.monotonic() + seconds
    found: dict[str, Any] = {"answers": 0, "failures": [], "slowest_s": 0.0}

    async def stream(number: int) -> None:
        turn = 0
        while time.monotonic() < end_s:
            turn += 1
            prompt = f"{number} {turn} " + " ".join(
                WORDS[(number + turn + i) % len(WORDS)] for i in range(words)
            )
            begin_s = time.monotonic()
            try:
                answer = await client.completions.create(
                    model=model, prompt=prompt, max_tokens=tokens, stream=True, temperature=0
                )
                reasons = [part.choices[0].finish_reason async for part in answer]
                if reasons[-1] not in ("stop", "length"):
                    found["failures"].append(f"ended with {reasons[-1]}")
            except openai.OpenAIError as error:
                found["failures"].append(f"{error!r} from {error.__cause__!r}")
                await asyncio.sleep(0.1)
                continue
            found["answers"] += 1
            found["slowest_s"] = max(found["slowest_s"], time.monotonic() - begin_s)

    await asyncio.gather(*(stream(number) for number in range(streams)))
    print(json.dumps(found))


if __name__ == "__main__":
    url, model, *numbers = sys.argv[1:]
    streams, seconds, words, tokens = (float(text) for text in numbers)
    asyncio.run(main(url, model, int(streams), seconds, int(words), int(tokens)))
