from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers

from exegpt_gateway.served import ServedModel
from exegpt_gateway.tokenizer import (
    MAX_PENDING,
    REPLACEMENT,
    Detokenizer,
    Tokenizer,
    load_tokenizer,
)
from exegpt_planner.errors import InvalidSpec, Unavailable

WORDS = ["▁", "▁Hello", "▁world", "Hel", "lo", "l", "w", ".", "▁▁", "é", "▁é"]


@pytest.fixture(scope="module")
def metaspace() -> Tokenizer:
    """Llama-2-like: words begin with ▁, the first space of a text is dropped, other characters are bytes."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for piece in [f"<0x{byte:02X}>" for byte in range(256)] + WORDS + list("Helowrd"):
        vocab.setdefault(piece, len(vocab))
    inner = tokenizers.Tokenizer(
        models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(inner, special_texts={})


def pieces(tokenizer: Tokenizer, tokens: list[int], after: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(tokenizer, after=after or [])
    return [*[detokenizer.push(token) for token in tokens], detokenizer.flush()]


@given(text=st.text(max_size=60))
def test_the_pieces_of_any_text_add_up_and_never_break_a_character(
    served: ServedModel, text: str
) -> None:
    tokens = served.tokenizer.encode(text, add_special_tokens=False)
    found = pieces(served.tokenizer, tokens)
    assert "".join(found) == served.tokenizer.decode(tokens)
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in found)


@given(tokens=st.lists(st.integers(0, 399), max_size=60))
def test_any_byte_level_tokens_add_up_to_their_one_shot_decode(
    served: ServedModel, tokens: list[int]
) -> None:
    assert "".join(pieces(served.tokenizer, tokens)) == served.tokenizer.decode(tokens)


class Measuring(Tokenizer):
    """Remembers the longest run it decoded."""

    longest = 0

    def decode(self, tokens: Sequence[int]) -> str:
        self.longest = max(self.longest, len(tokens))
        return super().decode(tokens)


@settings(max_examples=30)
@given(data=st.data())
def test_endless_garbage_is_delivered_from_bounded_windows(
    model_folder: Path, data: st.DataObject
) -> None:
    inner = tokenizers.Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    tokenizer = Measuring(inner, special_texts={})
    bytes_alone = [t for t in range(3, 400) if tokenizer.decode([t]) == REPLACEMENT]
    tokens = data.draw(st.lists(st.sampled_from(bytes_alone), min_size=60, max_size=120))
    found = "".join(pieces(tokenizer, tokens))
    assert tokenizer.longest <= 2 * MAX_PENDING + 2
    assert found == tokenizer.decode(tokens)


@given(text=st.text(max_size=40))
def test_metaspace_pieces_of_any_text_add_up(metaspace: Tokenizer, text: str) -> None:
    tokens = metaspace.encode(text, add_special_tokens=False)
    found = pieces(metaspace, tokens)
    assert "".join(found) == metaspace.decode(tokens) == text
    if REPLACEMENT not in text:
        assert not any(REPLACEMENT in piece for piece in found)


@given(data=st.data())
def test_any_metaspace_words_add_up(metaspace: Tokenizer, data: st.DataObject) -> None:
    ids = [metaspace.encode(word, add_special_tokens=False)[-1] for word in "Helowrd"]
    ids += [0, 1, 2, *range(3 + 256, 3 + 256 + len(WORDS))]
    tokens = data.draw(st.lists(st.sampled_from(ids), max_size=40))
    assert "".join(pieces(metaspace, tokens)) == metaspace.decode(tokens)
    # an answer that continues a prompt keeps the space that a text's beginning would lose
    after = data.draw(st.lists(st.sampled_from(ids), min_size=1, max_size=3))
    context = metaspace.decode(after[-1:])
    whole = metaspace.decode([*after[-1:], *tokens]) if context else metaspace.decode(tokens)
    assert context + "".join(pieces(metaspace, tokens, after)) == whole


def test_a_continuation_keeps_its_leading_space(metaspace: Tokenizer) -> None:
    hello, world = metaspace.encode("Hello", add_special_tokens=False), 261
    assert pieces(metaspace, [world], hello)[0] == " world"
    assert pieces(metaspace, [world])[0] == "world"


def test_invalid_bytes_after_valid_ones_do_not_disturb_delivered_text(metaspace: Tokenizer) -> None:
    tokens = [*metaspace.encode("你", add_special_tokens=False)[-3:], 3 + 0xE4, 3 + ord("A")]
    assert pieces(metaspace, tokens)[:3] == ["", "", "你"]
    assert "".join(pieces(metaspace, tokens)).startswith("你" + REPLACEMENT)


def test_special_tokens_are_no_text_even_inside_a_character(served: ServedModel) -> None:
    tokens = served.tokenizer.encode("𝄞", add_special_tokens=False)
    assert len(tokens) > 1
    mixed = [token for piece in tokens for token in (1, piece, 2)]
    assert "".join(pieces(served.tokenizer, mixed)) == "𝄞"


def test_bare_prompts_are_framed_and_templated_ones_are_not(served: ServedModel) -> None:
    assert served.tokenizer.encode("The", add_special_tokens=True)[0] == 0
    assert 0 not in served.tokenizer.encode("The", add_special_tokens=False)


def test_special_texts_come_in_both_forms(served: ServedModel) -> None:
    assert served.tokenizer.special_texts == {
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
    }


def test_a_folder_without_tokenizer_names_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"has no tokenizer\.json\. Save the model's"):
        load_tokenizer(tmp_path)


def test_broken_files_are_invalid_and_named(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(InvalidSpec, match=r"tokenizer\.json: not a tokenizer"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((model_folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(InvalidSpec, match=r"tokenizer_config\.json: not JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps([]))
    with pytest.raises(InvalidSpec, match="expected a JSON object"):
        load_tokenizer(tmp_path)
