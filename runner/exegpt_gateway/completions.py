"""/v1/completions: a text or token ids go on."""

from __future__ import annotations

from exegpt_gateway.answer import Wording
from exegpt_gateway.ask import Ask, Prompt, fit
from exegpt_gateway.openai_schema import CompletionRequest
from exegpt_gateway.served import ServedModel

DEFAULT_TOKENS = 16  # OpenAI's

WORDING = Wording(
    id_prefix="cmpl",
    whole_kind="text_completion",
    chunk_kind="text_completion",
    whole=lambda text: {"text": text},
    opening=None,
    piece=lambda text: {"text": text},
    closing={"text": ""},
)


def read_ask(request: CompletionRequest, served: ServedModel) -> Ask:
    """What `request` asks of `served`; raises `InvalidSpec` when it does not fit."""
    prompt = Prompt(
        field="prompt",
        tokens=_tokens(request.prompt, served),
        continues_text=True,
        default_tokens=DEFAULT_TOKENS,
    )
    return fit(request, prompt, served)


def _tokens(prompt: str | list[int], served: ServedModel) -> list[int]:
    if isinstance(prompt, list):
        return prompt
    tokens = served.tokenizer.encode(prompt, add_special_tokens=True)
    if not tokens and served.bos_token is not None:
        return [served.bos_token]  # an empty prompt asks for a text from its beginning
    return tokens
