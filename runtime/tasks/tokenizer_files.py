"""The tokenizer of a model's small files, in any form that transformers reads with what is here.

`tokenizer.json`, SentencePiece models, vocabularies of words and pieces. What cannot be read is
refused by the name of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from runtime.errors import ModelInvalid

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

_PATTERNS: Final = (
    "tokenizer.json",
    "vocab*",
    "merges.txt",
    "tekken.json",
    "*.model",
    "*.spm",
    "*.codes",
    "*.tokenizer",
    "*.tiktoken",
)
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
