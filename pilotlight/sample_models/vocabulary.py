"""Vocabularies of made-up words, for models with random weights.

Training a tokenizer is not deterministic (Unigram, WordPiece); a listed vocabulary is. Text decoded
with these pieces is meaningless but readable, never empty or all padding.
"""

from __future__ import annotations

import itertools
import string
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
