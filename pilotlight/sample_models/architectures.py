"""What sample models are made of: published shapes, tiny ones for tests, and vocabularies.

Vocabularies are of made-up words: to train a tokenizer is not deterministic (Unigram, WordPiece), a
listed vocabulary is. Text decoded with its pieces is meaningless but readable, never empty or all
padding.
"""

import itertools
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Family(StrEnum):
    """The kind of network, with its tokenizer or image processor."""

    T5 = "t5"
    BERT = "bert"
    VIT = "vit"
    GPT2 = "gpt2"
    LLAMA = "llama"
    QWEN2 = "qwen2"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One model that can be made: its family, shape, vocabulary and output length."""

    family: Family
    shape: Mapping[str, int]
    """Fields of the configuration class in transformers."""
    piece_count: int = 0
    """Pieces in the tokenizer; the embedding may be larger, as T5's 32,128 rows are."""
    new_token_count: int = 0
    """Tokens of every generated output; sets how long one inference takes."""
    label_count: int = 0


T5_PIECES = 32_100
T5_NEW_TOKENS = 16
"""About 0.3 s an inference for t5-small on one thread of the development machine."""


T5_PREFIXES: Mapping[str, str] = {
    "summarization": "summarize: ",
    "translation_en_to_de": "translate English to German: ",
    "translation_en_to_fr": "translate English to French: ",
    "translation_en_to_ro": "translate English to Romanian: ",
}
"""The tasks of the published T5 models, without their four beams: outputs have one length."""


def _t5(d_model: int, d_ff: int, num_layers: int, num_heads: int) -> Architecture:
    shape = {
        "vocab_size": 32_128,
        "d_model": d_model,
        "d_kv": 64,
        "d_ff": d_ff,
        "num_layers": num_layers,
        "num_heads": num_heads,
    }
    return Architecture(Family.T5, shape, piece_count=T5_PIECES, new_token_count=T5_NEW_TOKENS)


def _encoder(size: int, layers: int, heads: int, intermediate: int) -> dict[str, int]:
    """The fields that BERT and ViT share."""
    return {
        "hidden_size": size,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": intermediate,
    }


_BASE = _encoder(size=768, layers=12, heads=12, intermediate=3072)
_TINY_LLAMA = {
    "vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 256, "max_position_embeddings": 1024,
}  # fmt: skip
"""vLLM's attention on a CPU takes heads of 32 and more."""
_TINY = _encoder(size=32, layers=2, heads=4, intermediate=64)

ARCHITECTURES: Mapping[str, Architecture] = {
    "t5-small": _t5(d_model=512, d_ff=2048, num_layers=6, num_heads=8),
    "t5-base": _t5(d_model=768, d_ff=3072, num_layers=12, num_heads=12),
    "t5-large": _t5(d_model=1024, d_ff=4096, num_layers=24, num_heads=16),
    "bert-base": Architecture(
        Family.BERT,
        {"vocab_size": 30_522, "max_position_embeddings": 512, **_BASE},
        piece_count=30_522,
        label_count=5,
    ),
    "vit-base": Architecture(
        Family.VIT, {"image_size": 224, "patch_size": 16, **_BASE}, label_count=1000
    ),
    "gpt2-small": Architecture(
        Family.GPT2,
        {"vocab_size": 50_257, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024},
        piece_count=50_257,
        new_token_count=16,
    ),
    "tiny-t5": Architecture(
        Family.T5,
        {"vocab_size": 640, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4},
        piece_count=600,
        new_token_count=4,
    ),
    "tiny-bert": Architecture(
        Family.BERT,
        {"vocab_size": 600, "max_position_embeddings": 64, **_TINY},
        piece_count=600,
        label_count=3,
    ),
    "tiny-vit": Architecture(
        Family.VIT, {"image_size": 32, "patch_size": 8, **_TINY}, label_count=10
    ),
    "tiny-gpt2": Architecture(
        Family.GPT2,
        {"vocab_size": 1000, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 1024},
        piece_count=1000,
        new_token_count=8,
    ),
    "tiny-llama": Architecture(Family.LLAMA, _TINY_LLAMA, piece_count=1000, new_token_count=8),
    "tiny-qwen2": Architecture(Family.QWEN2, _TINY_LLAMA, piece_count=1000, new_token_count=8),
}
"""By the name that `make-model` takes."""


CONSONANTS = "bdfghjklmnprstvwz"
VOWELS = "aeiou"
LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits + string.punctuation
SPACE = "▁"
BYTE_SPACE = "\u0120"
"""The character for the byte of a space in byte-level vocabularies."""


def syllable_words(count: int) -> list[str]:
    """The first `count` words of one, two and three syllables, all different."""
    words = list(itertools.islice(_words_by_length(), count))
    if len(words) < count:
        raise ValueError(f"count must be at most {len(words)} words, was {count}")
    return words


def unigram_pieces(count: int, *, sentinel_count: int) -> list[tuple[str, float]]:
    """A T5 vocabulary of `count` pieces: specials, space, letters, words, then sentinels."""
    specials = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), (SPACE, -4.0)]
    letters = [(letter, -12.0) for letter in LETTERS]
    sentinels = [(f"<extra_id_{index}>", 0.0) for index in reversed(range(sentinel_count))]
    word_count = count - len(specials) - len(letters) - len(sentinels)
    words = [(SPACE + word, -10.0) for word in syllable_words(word_count)]
    return [*specials, *letters, *words, *sentinels]


def wordpiece_vocabulary(count: int) -> dict[str, int]:
    """A BERT vocabulary of `count` pieces: specials, letters (also as continuation), words."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [letter for letter in LETTERS if not letter.isupper()]
    pieces = [*specials, *letters, *(f"##{letter}" for letter in letters)]
    pieces += syllable_words(count - len(pieces))
    return {piece: index for index, piece in enumerate(pieces)}


def byte_level_vocabulary(
    count: int, alphabet: Sequence[str], special: str
) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """A GPT-2 vocabulary of `count` pieces and its merges: bytes, merged syllables, one special.

    `alphabet` holds a character for each of the 256 bytes; words begin with the one for space.
    """
    merges = list(itertools.islice(_merges(), count - len(alphabet) - 1))
    pieces = [*alphabet, *(first + second for first, second in merges), special]
    if len(pieces) != count:
        raise ValueError(f"count must be at most {len(pieces)} pieces, was {count}")
    return {piece: index for index, piece in enumerate(pieces)}, merges


def _merges() -> Iterator[tuple[str, str]]:
    """Syllables, then words of one, two and three of them."""
    syllables = [consonant + vowel for vowel in VOWELS for consonant in CONSONANTS]
    yield from ((syllable[0], syllable[1]) for syllable in syllables)
    words = [BYTE_SPACE]
    for _ in range(3):
        pairs = list(itertools.product(words, syllables))
        yield from pairs
        words = [first + second for first, second in pairs]


def _words_by_length() -> Iterator[str]:
    """Words in a fixed order; the last syllable varies slowest, so that neighbours differ."""
    syllables = [consonant + vowel for vowel in VOWELS for consonant in CONSONANTS]
    for length in (1, 2, 3):
        for parts in itertools.product(syllables, repeat=length):
            yield "".join(reversed(parts))
