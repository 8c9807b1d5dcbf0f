"""The tokenizer of a model's small files, in any form that transformers reads with what is here.

`tokenizer.json`, SentencePiece models, vocabularies of words and pieces. What cannot be read is
refused by its name; so is what takes time or memory without bounds (`unbounded_part`).
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


_PATTERNS: Final = (
    "tokenizer.json", "vocab*", "merges.txt", "tekken.json", "*.model", "*.spm", "*.codes",
    "*.tokenizer", "*.tiktoken",
)  # fmt: skip
_SENTENCEPIECE_SUFFIXES: Final = (".model", ".spm")
_NOT_VOCABULARY: Final = "tokenizer_config.json"
_WAY_OUT: Final = (
    "load the tokenizer with transformers where that library is installed, and store the"
    " tokenizer.json that save_pretrained writes"
)


def load_tokenizer(
    folder: Path, config: PretrainedConfig | None = None, **options: Any
) -> PreTrainedTokenizerBase:
    """Raises ModelInvalid, which names the file that is missing or cannot be read.

    `options`: that the tokenizer takes, such as `do_lower_case`.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            folder, config=config, trust_remote_code=False, local_files_only=True, **options
        )
    except BaseException as error:  # a panic in Rust is not an Exception
        raise ModelInvalid(_failure(folder, error)) from error
    _check_vocabulary(folder, tokenizer)
    return tokenizer


def plain_backend(tokenizer: PreTrainedTokenizerBase) -> Any:
    """What encodes for the tokenizer, twice as fast by itself; None where that is not all it does.

    The tokenizer's part is to set it: it does so at its first call, and nothing else uses it.
    """
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    kind: Any = type(tokenizer)
    is_plain = (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and kind.__call__ is PreTrainedTokenizerBase.__call__
        and kind._encode_plus is PreTrainedTokenizerFast._encode_plus
        and not hasattr(kind, "_switch_to_input_mode")
    )
    return tokenizer.backend_tokenizer if is_plain else None


def _check_vocabulary(folder: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    """Without its files, transformers returns a tokenizer with a few special tokens only."""
    own = set(type(tokenizer).vocab_files_names.values()) - {_NOT_VOCABULARY}
    names = {"tokenizer.json", "tokenizer.model", *own}
    if own and not any((folder / name).exists() for name in names):
        raise ModelInvalid(f"the model has no tokenizer: none of {', '.join(sorted(names))}")


def _failure(folder: Path, error: BaseException) -> str:
    found = sorted({path.name for pattern in _PATTERNS for path in folder.glob(pattern)})
    if not found:
        return f"the model has no tokenizer: none of {', '.join(_PATTERNS)}"
    if "tokenizer.json" not in found:
        if wrong := [name for name in found if not _is_readable(folder / name)]:
            return (
                f"the model's tokenizer cannot be used: {wrong[0]} is not a SentencePiece model; if"
                f" it is one of tiktoken, that library is not installed here: {_WAY_OUT}"
            )
        if found == ["tekken.json"]:
            return (
                "the model's only tokenizer is tekken.json, which needs mistral-common, and that"
                f" is not installed here: {_WAY_OUT}"
            )
    return f"the model's tokenizer cannot be used: {error}"


def _is_readable(path: Path) -> bool:
    if path.suffix == ".tiktoken":
        return False
    if path.suffix not in _SENTENCEPIECE_SUFFIXES:
        return True
    from sentencepiece import SentencePieceProcessor

    try:
        SentencePieceProcessor(model_file=str(path))
    except (OSError, RuntimeError):
        return False
    return True


MAX_GROWTH: Final = 64
"""How much longer than its input a text may become."""
MAX_WORD_CHARACTERS: Final = 1000
"""WordPiece looks at all parts of a word: its time is the square of this."""
MAX_PIECE_CHARACTERS: Final = 256
"""Unigram looks for pieces of up to this length at each character; whitespace has runs as one."""

_ENGLISH: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
KNOWN_PATTERNS: Final = frozenset(
    {
        # GPT-2, and the forms of it in CLIP, GPT-4 and Llama 3, Qwen 2, GPT-4o, DeepSeek, Falcon
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
        r"<\|startoftext\|>|<\|endoftext\|>"
        r"|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
        _ENGLISH
        + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        + r"|\s+(?!\S)|\s+",
        _ENGLISH
        + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        r"\s+",
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        r"\p{N}",
        r"\p{N}{1,3}",
        "[0-9]",
        "[0-9][0-9][0-9]",
        " {2,}",
    }
)
"""Patterns of published tokenizers, each linear in the length of the text."""

Document = Mapping[str, Any]


def unbounded_part(tokenizer: Document) -> str | None:
    """The first part of a `tokenizer.json` whose cost is not bounded; None: there is none.

    The file is a program: its regular expressions may backtrack exponentially, its replacements may
    multiply the text. A tokenizer with usual parts only runs in the pod, all others in the sandbox.
    """
    try:
        return next(_unbounded(tokenizer), None)
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, struct.error) as error:
        return f"its form ({error!r:.80})"


def unbounded_decoder(tokenizer: Document) -> str | None:
    """As `unbounded_part`, of the decoder: it runs at each token of a stream."""
    try:
        parts = list(_parts(tokenizer.get("decoder")))
    except (TypeError, AttributeError, RecursionError) as error:
        return f"its form ({error!r:.80})"
    for part in parts:
        if _pattern(part) is not None:
            return f"the pattern {_pattern(part)!r:.80} of the decoder"
    return None if _growth(parts) <= MAX_GROWTH else "a replacement of the decoder"


def _unbounded(tokenizer: Document) -> Iterator[str]:
    parts = [
        part for name in ("normalizer", "pre_tokenizer") for part in _parts(tokenizer.get(name))
    ]
    for part in parts:
        pattern = _pattern(part)
        if pattern is not None and pattern not in KNOWN_PATTERNS:
            yield f"the pattern {pattern!r:.80}"
    if _growth(parts) > MAX_GROWTH:
        yield "a replacement that makes a text much longer"
    model = tokenizer.get("model") or {}
    if (model.get("max_input_chars_per_word") or 0) > MAX_WORD_CHARACTERS:
        yield f"max_input_chars_per_word over {MAX_WORD_CHARACTERS}"
    if isinstance(model.get("vocab"), list):  # Unigram's pairs of piece and score
        longest = max((len(piece) for piece, _ in model["vocab"]), default=0)
        if longest > MAX_PIECE_CHARACTERS:
            yield f"a piece of {longest} characters"


def _parts(part: Any) -> Iterator[Document]:
    """A part and all parts of its sequences."""
    if part is None:
        return
    yield part
    for name in ("normalizers", "pretokenizers", "processors", "decoders"):
        for each in part.get(name) or ():
            yield from _parts(each)


def _pattern(part: Document) -> str | None:
    pattern = part.get("pattern")
    found = pattern.get("Regex") if isinstance(pattern, dict) else None
    return None if found is None else str(found)


def _growth(parts: list[Document]) -> float:
    """Upper bound of the length of the text after all parts, per character before them."""
    growth = 1.0
    for part in parts:
        kind = part.get("type")
        if kind == "Replace":
            pattern = part.get("pattern")
            replaced = pattern.get("String") or "x" if isinstance(pattern, dict) else "x"
            growth *= max(1.0, len(part.get("content") or "") / len(replaced))
        elif kind == "Precompiled":
            growth *= max(1, _longest_replacement(part.get("precompiled_charsmap") or ""))
        elif kind == "Prepend":
            growth *= max(1, len(part.get("prepend") or "") / MAX_GROWTH)
    return growth


def _longest_replacement(charsmap: str) -> int:
    """Of SentencePiece's normalisation map: a trie, then the replacements, separated by zeros."""
    content = base64.b64decode(charsmap)
    if len(content) < 4:
        return 0
    (trie_bytes,) = struct.unpack("<I", content[:4])
    replacements = content[4 + trie_bytes :].split(b"\0")
    return max(len(each.decode("utf-8", "replace")) for each in replacements)
