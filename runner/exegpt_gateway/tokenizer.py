"""Text to tokens and back, from a Hugging Face folder, with the `tokenizers` package alone.

Detokenising is incremental: decode a short window of tokens before and after the new one and deliver
the difference, so that the cost of a token does not grow with the answer. What may still change (a
character whose bytes are not all there shows as U+FFFD) is held back. The pieces add up to the
one-shot decode; only a run of byte-fallback tokens that is not valid UTF-8 may differ, in how many
U+FFFD stand for it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from exegpt_planner.errors import InvalidSpec, Unavailable

REPLACEMENT = "\ufffd"
MAX_PENDING = 16  # a character takes at most 4 tokens; more pending tokens than this are no text
MAX_CHARACTER_BYTES = 4  # UTF-8


class Tokenizer:
    """A tokenizer with its special tokens' ids and texts."""

    def __init__(self, inner: tokenizers.Tokenizer, *, special_texts: dict[str, str]) -> None:
        self._inner = inner
        self.special_texts = special_texts  # "bos_token" -> "<s>", ...: what templates may name
        self.special_ids = frozenset(
            token for token, added in inner.get_added_tokens_decoder().items() if added.special
        )

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """The tokens of `text`; with `add_special_tokens` framed as the model expects a bare prompt."""
        return self._inner.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of `tokens`, special tokens left out."""
        return self._inner.decode(list(tokens), skip_special_tokens=True)


class Detokenizer:
    """The text of one answer, token by token.

    `after` are the prompt's last tokens where the answer continues its text: a tokenizer that marks
    words by a leading space drops the first one of a text, and the answer is not a text's beginning.
    """

    def __init__(self, tokenizer: Tokenizer, *, after: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []  # the last delivered tokens, then the pending ones
        self._num_delivered = 0
        self._delivered = ""  # decode(window[:num_delivered])
        context = tokenizer.decode(after[-1:])
        if context and not context.endswith(REPLACEMENT):
            self._window, self._num_delivered, self._delivered = list(after[-1:]), 1, context

    def push(self, token: int) -> str:
        """The text that is certain with `token`; "" while a character is incomplete."""
        if token in self._tokenizer.special_ids:
            return ""
        self._window.append(token)
        text = self._tokenizer.decode(self._window)
        if text == self._delivered:
            return (
                ""  # nothing yet: a settled window must hold text, or a leading space would be lost
            )
        if text.endswith(REPLACEMENT):
            return self._settle_garbage(text)
        return self._settle(text, len(self._window))

    def flush(self) -> str:
        """What is pending, as the one-shot decode would show it."""
        return self._settle(self._tokenizer.decode(self._window), len(self._window))

    def _settle(self, text: str, end: int) -> str:
        """Delivers `text`, the decode of the window's first `end` tokens."""
        if text.startswith(self._delivered):
            new = text[len(self._delivered) :]
        else:  # bytes that turned out invalid changed the look of delivered ones
            new = self._tokenizer.decode(self._window[self._num_delivered : end])
        if self._num_delivered < end:
            self._window = self._window[self._num_delivered :]
            self._num_delivered = end - self._num_delivered
            self._delivered = self._tokenizer.decode(self._window[: self._num_delivered])
        return new

    def _settle_garbage(self, text: str) -> str:
        """Bytes without end that make no character: deliver up to a place where nothing spans."""
        size = len(self._window)
        if size - self._num_delivered <= MAX_PENDING:
            return ""
        for end in range(size - 1, size - 1 - MAX_CHARACTER_BYTES, -1):
            head = self._tokenizer.decode(self._window[:end])
            tail = self._tokenizer.decode(self._window[end:])
            if head + tail == text:
                return self._settle(head, end)
        return ""


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder (`tokenizer.json`, `tokenizer_config.json`)."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise Unavailable(
            f"{folder} has no tokenizer.json. Save the model's fast tokenizer there "
            "(transformers: AutoTokenizer.from_pretrained(...).save_pretrained(folder))."
        )
    try:
        inner = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # nothing narrower: the package raises bare Exception
        raise InvalidSpec(str(path), [f"not a tokenizer: {error}"]) from None
    inner.no_truncation()
    inner.no_padding()
    return Tokenizer(inner, special_texts=_special_texts(read_tokenizer_config(folder)))


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """`tokenizer_config.json` of the folder; empty when there is none."""
    path = folder / "tokenizer_config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {error.strerror}. Check the path.") from None
    except ValueError as error:
        raise InvalidSpec(str(path), [f"not JSON: {error}"]) from None
    if not isinstance(config, dict):
        raise InvalidSpec(str(path), ["expected a JSON object at the top"])
    return config


def _special_texts(config: dict[str, Any]) -> dict[str, str]:
    texts = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token"):
        match config.get(name):
            case str(text) | {"content": str(text)}:
                texts[name] = text
    return texts
