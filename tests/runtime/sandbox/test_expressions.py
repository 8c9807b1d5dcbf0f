"""Which tokenizers run in the pod, and which in the sandbox."""

import base64
import struct
from pathlib import Path
from typing import Any

import orjson
import pytest

from runtime.sandbox.sandbox_processes import PAUSE_S, Refusals
from runtime.tasks.tokenizer_files import unbounded_decoder, unbounded_part

LLAMA = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}


def replace(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def charsmap(*replacements: str) -> dict[str, Any]:
    trie = b"\0" * 8
    content = struct.pack("<I", len(trie)) + trie + "\0".join(replacements).encode()
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


@pytest.mark.parametrize("model", ["tiny-t5", "tiny-bert", "tiny-gpt2"])
def test_usual_tokenizers_run_in_the_pod(models: Path, model: str) -> None:
    tokenizer = orjson.loads((models / model / "tokenizer.json").read_bytes())
    assert unbounded_part(tokenizer) is None
    assert unbounded_decoder(tokenizer) is None


@pytest.mark.parametrize(
    ("tokenizer", "part"),
    [
        pytest.param({"pre_tokenizer": split(LLAMA)}, None, id="llama"),
        pytest.param({"pre_tokenizer": split("(a+)+$")}, "pattern", id="pattern"),
        pytest.param(
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [split("(a|a)*b")]}},
            "pattern",
            id="nested",
        ),
        pytest.param({"normalizer": replace(" ", "▁")}, None, id="sentencepiece"),
        pytest.param({"normalizer": replace("a", "b" * 65)}, "longer", id="long"),
        pytest.param({"normalizer": sequence(*[replace("a", "aa")] * 7)}, "longer", id="chain"),
        pytest.param({"normalizer": replace("", "b" * 65)}, "longer", id="of-nothing"),
        pytest.param({"normalizer": charsmap("x", "صلى الله عليه وسلم")}, None, id="nfkc"),
        pytest.param({"normalizer": charsmap("x", "y" * 65)}, "longer", id="charsmap"),
        pytest.param({"model": {"max_input_chars_per_word": 100_000}}, "per_word", id="word"),
        pytest.param({"model": {"vocab": [["a" * 300, 0.0]]}}, "a piece", id="piece"),
        pytest.param({"model": {"vocab": [["▁a", 0.0]]}}, None, id="unigram"),
        pytest.param({"model": {"vocab": [1]}}, "form", id="no-vocabulary"),
        pytest.param({"normalizer": "NFC"}, "form", id="no-object"),
        pytest.param({"pre_tokenizer": split(5)}, "pattern", id="no-text"),  # type: ignore[arg-type]
    ],
)
def test_only_parts_of_bounded_cost_run_in_the_pod(
    tokenizer: dict[str, Any], part: str | None
) -> None:
    found = unbounded_part(tokenizer)
    assert (found is None) if part is None else (found is not None and part in found)


def test_decoders_have_no_patterns() -> None:
    assert unbounded_decoder({"decoder": replace("▁", " ")}) is None
    assert unbounded_decoder({"decoder": {"type": "Sequence", "decoders": [split("a+")]}})
    assert unbounded_decoder({"decoder": replace("▁", " " * 100)})


def test_a_kill_by_a_short_input_refuses_all() -> None:
    refusals = Refusals()
    assert refusals.refused_s(10, 0.0) == 0.0
    refusals.record(10, 0.0)
    assert refusals.refused_s(0, 1.0) == PAUSE_S - 1
    assert refusals.refused_s(10**6, PAUSE_S) == 0.0


def test_a_kill_by_a_huge_input_leaves_usual_ones() -> None:
    refusals = Refusals()
    refusals.record(10**6, 0.0)
    assert refusals.refused_s(249_999, 1.0) == 0.0
    assert refusals.refused_s(250_000, 1.0) > 0


def test_a_template_that_never_ends_is_refused_after_few_kills() -> None:
    refusals, now_s, kills = Refusals(), 0.0, 0
    size = 4 * 10**6
    while size:
        if not refusals.refused_s(size, now_s):
            refusals.record(size, now_s)
            kills += 1
        now_s += 1
        size = min(size - 1, (refusals.from_bytes or 1) - 1)
    assert kills <= 7


def test_a_later_longer_kill_does_not_admit_shorter_ones() -> None:
    refusals = Refusals()
    refusals.record(10_000, 0.0)
    refusals.record(10**6, 1.0)
    assert refusals.refused_s(5000, 2.0) > 0
