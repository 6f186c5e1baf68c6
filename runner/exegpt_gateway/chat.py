"""/v1/chat/completions: a conversation, worded by the model's own template, is answered."""

from __future__ import annotations

from typing import Any

from exegpt_gateway.answer import Wording
from exegpt_gateway.ask import Ask, Prompt, fit
from exegpt_gateway.openai_schema import SOURCE, ChatRequest, Message
from exegpt_gateway.served import ServedModel
from exegpt_planner.errors import InvalidSpec

WORDING = Wording(
    id_prefix="chatcmpl",
    whole_kind="chat.completion",
    chunk_kind="chat.completion.chunk",
    whole=lambda text: {"message": {"role": "assistant", "content": text, "refusal": None}},
    opening={"delta": {"role": "assistant", "content": ""}},
    piece=lambda text: {"delta": {"content": text}},
    closing={"delta": {}},
)


def read_ask(request: ChatRequest, served: ServedModel) -> Ask:
    """What `request` asks of `served`; raises `InvalidSpec` when it does not fit."""
    if served.chat_template is None:
        problem = f"messages: {served.name} has no chat template; use /v1/completions"
        raise InvalidSpec(SOURCE, [problem])
    text = served.chat_template.render([_turn(message) for message in request.messages])
    # the template writes the begin token itself: adding special tokens would double it
    tokens = served.tokenizer.encode(text, add_special_tokens=False)
    return fit(
        request,
        Prompt(
            field="messages", tokens=tokens, continues_text=False, default_tokens=served.context
        ),
        served,
    )


def _turn(message: Message) -> dict[str, Any]:
    """The message as templates know it."""
    # OpenAI's newer name of the same role, which templates don't know
    role = "system" if message.role == "developer" else message.role
    turn = {"role": role, "content": message.content}
    return turn if message.name is None else {**turn, "name": message.name}
