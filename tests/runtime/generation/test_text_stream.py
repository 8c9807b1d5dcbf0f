"""Incremental decoding: whole characters, stop strings."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from runtime.generation.text_stream import TextStream

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "babe dida — Ω≈ç√ 日本語 \U0001f600 end"


@pytest.fixture(scope="module")
def tokenizer(models: Path) -> PreTrainedTokenizerBase:
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(models / "tiny-gpt2")
    return loaded


def pieces_of(
    tokenizer: PreTrainedTokenizerBase, text: str, *stops: str
) -> tuple[list[str], TextStream]:
    stream = TextStream(tokenizer, stops)
    pieces = [stream.push([each]) for each in tokenizer(text)["input_ids"]]
    return [*pieces, stream.finish()], stream


def test_pieces_make_the_text_and_no_character_is_halved(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    pieces, stream = pieces_of(tokenizer, TEXT)
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)
    assert len([piece for piece in pieces if piece]) > 10
    assert not stream.is_stopped


def test_any_tokens_give_the_text_that_they_decode_to(tokenizer: PreTrainedTokenizerBase) -> None:
    draw = random.Random(7)
    for _ in range(50):
        ids = [draw.randrange(999) for _ in range(40)]
        stream = TextStream(tokenizer, ())
        text = "".join(stream.push([each]) for each in ids) + stream.finish()
        # For invalid bytes, the number of replacement characters depends on the chunks.
        whole: str = tokenizer.decode(ids, skip_special_tokens=True)
        assert text.replace("\ufffd", "") == whole.replace("\ufffd", "")


def test_returns_nothing_of_a_stop_string(tokenizer: PreTrainedTokenizerBase) -> None:
    pieces, stream = pieces_of(tokenizer, "one two STOP three", "zzz", "STOP")
    assert "".join(pieces) == "one two "
    assert stream.is_stopped


def test_the_first_of_several_stop_strings_ends_it(tokenizer: PreTrainedTokenizerBase) -> None:
    pieces, _ = pieces_of(tokenizer, "one two three", "three", "two")
    assert "".join(pieces) == "one "


def test_returns_held_text_that_is_no_stop_string(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    pieces, stream = pieces_of(tokenizer, "a STO b ST", "STOP")
    assert "".join(pieces) == "a STO b ST"
    assert not stream.is_stopped


def test_invalid_bytes_do_not_hold_back_the_text(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    half = tokenizer("\U0001f600")["input_ids"][0]
    stream = TextStream(tokenizer, ())
    out = "".join(stream.push([half]) for _ in range(100))
    assert len(out) > 50
