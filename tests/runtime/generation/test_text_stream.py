"""Incremental decoding: whole characters, stop strings."""

import random
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from runtime.generation.engine import TextStream

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


def test_returns_held_text_that_is_no_stop_string(tokenizer: PreTrainedTokenizerBase) -> None:
    pieces, stream = pieces_of(tokenizer, "a STO b ST", "STOP")
    assert "".join(pieces) == "a STO b ST"
    assert not stream.is_stopped


def test_invalid_bytes_do_not_hold_back_the_text(tokenizer: PreTrainedTokenizerBase) -> None:
    half = tokenizer("\U0001f600")["input_ids"][0]
    stream = TextStream(tokenizer, ())
    out = "".join(stream.push([half]) for _ in range(100))
    assert len(out) > 50


def piece_tokenizer() -> PreTrainedTokenizerBase:
    """As Llama 2's: `\u2581` for spaces, bytes, and a decoder that strips a first space."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for piece in (*(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *WORDS):
        vocabulary.setdefault(piece, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


WORDS = ("\u2581Hello", "\u2581world", "\u2581again", "s")


def ids_of(tokenizer: PreTrainedTokenizerBase, *pieces: str) -> list[int]:
    return [int(tokenizer.convert_tokens_to_ids(piece)) for piece in pieces]


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        pytest.param(["<s>", "\u2581Hello"], " world again", id="behind-a-word"),
        pytest.param(["<s>"], "world again", id="behind-a-special-token"),
        pytest.param([], "world again", id="by-itself"),
        pytest.param(["<s>", *["\u2581Hello"] * 40], " world again", id="behind-a-long-prompt"),
    ],
)
def test_a_text_begins_with_a_space_where_it_continues_one(prompt: list[str], text: str) -> None:
    tokenizer = piece_tokenizer()
    stream = TextStream(tokenizer, (), prompt_ids=ids_of(tokenizer, *prompt))
    new = ids_of(tokenizer, "\u2581world", "\u2581again", "</s>")
    assert "".join(stream.push([each]) for each in new) + stream.finish() == text


def test_a_character_that_the_prompt_began_is_completed() -> None:
    tokenizer = piece_tokenizer()
    first, second = ids_of(tokenizer, "<0xC3>", "<0xA9>")
    stream = TextStream(tokenizer, (), prompt_ids=[*ids_of(tokenizer, "<s>", "s"), first])
    assert stream.push([second]) == "\u00e9"


def test_stop_strings_and_special_tokens_are_kept_if_wanted() -> None:
    tokenizer = piece_tokenizer()
    ids = ids_of(tokenizer, "\u2581world", "\u2581again", "s", "</s>")
    stopped = TextStream(tokenizer, ["ag"], keeps_stop=True)
    assert "".join(stopped.push([each]) for each in ids) == "world ag"
    special = TextStream(tokenizer, (), keeps_special=True)
    assert "".join(special.push([each]) for each in ids) + special.finish() == "world agains</s>"
