"""What the front door knows of the model it serves."""

from __future__ import annotations

from dataclasses import dataclass

from exegpt_gateway.chat_template import ChatTemplate
from exegpt_gateway.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model under the name clients use for it."""

    name: str
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None  # None: completions only
    context: int  # prompt and output tokens together, at most
    vocab: int  # token ids are below it
    end_tokens: tuple[int, ...]
    bos_token: int | None
