"""The model as a gateway knows it, from the folder that its workers load too."""

from __future__ import annotations

from pathlib import Path

from exegpt_gateway.chat_template import load_chat_template
from exegpt_gateway.served import ServedModel
from exegpt_gateway.tokenizer import load_tokenizer
from exegpt_planner.model_spec import ModelSpec


def served_model(folder: Path, model: ModelSpec, name: str) -> ServedModel:
    """Tokenizer, chat template and limits of the model in `folder`, served under `name`."""
    tokenizer = load_tokenizer(folder)
    return ServedModel(
        name=name,
        tokenizer=tokenizer,
        chat_template=load_chat_template(folder, special_texts=tokenizer.special_texts),
        context=model.context,
        vocab=model.vocab,
        end_tokens=model.end_tokens,
        bos_token=model.bos_token,
    )
