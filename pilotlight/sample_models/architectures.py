"""The architectures of sample models: published shapes, and tiny ones for tests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Family(StrEnum):
    """The kind of network, with its tokenizer or image processor."""

    T5 = "t5"
    BERT = "bert"
    VIT = "vit"
    GPT2 = "gpt2"
    PROGRAM = "program"
    DIFFUSION = "diffusion"


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
    "tiny-program": Architecture(Family.PROGRAM, {}),
    "tiny-diffusion": Architecture(Family.DIFFUSION, {}),
}
"""By the name that `make-model` takes."""
