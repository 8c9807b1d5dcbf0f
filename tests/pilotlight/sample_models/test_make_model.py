"""Sample models: reproducible bytes, published shapes, usable vocabularies."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pilotlight.sample_models.architectures import (
    ARCHITECTURES,
    T5_PIECES,
    byte_level_vocabulary,
    syllable_words,
    unigram_pieces,
    wordpiece_vocabulary,
)
from pilotlight.sample_models.make_model import make_model


@pytest.mark.parametrize("name", ["tiny-t5", "tiny-bert", "tiny-vit", "tiny-gpt2"])
def test_same_name_gives_same_bytes(name: str, models: Path, tmp_path: Path) -> None:
    again = make_model(name, tmp_path / "again")
    files = sorted(path.name for path in again.iterdir())
    assert files == sorted(path.name for path in (models / name).iterdir())
    for file in files:
        assert (again / file).read_bytes() == (models / name / file).read_bytes(), file


@pytest.mark.parametrize("name", ["tiny-t5", "tiny-bert", "tiny-vit", "tiny-gpt2"])
def test_tiny_models_are_tiny(name: str, models: Path) -> None:
    assert sum(path.stat().st_size for path in (models / name).iterdir()) < 1_000_000


def test_weights_have_the_names_of_published_ones(models: Path) -> None:
    """Those of transformers 5 differ."""
    names = load_file(models / "tiny-vit" / "model.safetensors").keys()
    assert "vit.encoder.layer.1.attention.attention.query.weight" in names
    assert not any("q_proj" in name for name in names)


def test_t5_small_has_the_published_size() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    with torch.device("meta"):
        network = T5ForConditionalGeneration(T5Config(**ARCHITECTURES["t5-small"].shape))
    assert sum(parameter.numel() for parameter in network.parameters()) == 60_506_624


def test_unigram_pieces_are_unique_and_complete() -> None:
    pieces = [piece for piece, _ in unigram_pieces(T5_PIECES, sentinel_count=100)]
    assert len(pieces) == len(set(pieces)) == 32_100
    assert pieces[:3] == ["<pad>", "</s>", "<unk>"]
    assert pieces[-1] == "<extra_id_0>"


def test_wordpieces_are_unique() -> None:
    vocabulary = wordpiece_vocabulary(30_522)
    assert sorted(vocabulary.values()) == list(range(30_522))


def test_gpt2_small_has_the_published_size() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    with torch.device("meta"):
        network = GPT2LMHeadModel(GPT2Config(**ARCHITECTURES["gpt2-small"].shape))
    assert sum(parameter.numel() for parameter in network.parameters()) == 124_439_808


def test_byte_level_merges_make_each_piece() -> None:
    alphabet = [chr(256 + byte) for byte in range(256)]
    vocabulary, merges = byte_level_vocabulary(50_257, alphabet, "<|endoftext|>")
    assert sorted(vocabulary.values()) == list(range(50_257))
    assert len(merges) == 50_000
    assert all(first + second in vocabulary for first, second in merges)
    with pytest.raises(ValueError, match="at most"):
        byte_level_vocabulary(10**7, alphabet, "<|endoftext|>")


def test_too_many_words_are_rejected() -> None:
    with pytest.raises(ValueError, match="at most"):
        syllable_words(10**7)


def test_making_a_model_again_replaces_its_files_atomically(tmp_path: Path) -> None:
    folder = make_model("tiny-bert", tmp_path / "m")
    before = (folder / "model.safetensors").open("rb")
    make_model("tiny-bert", folder)
    with before:  # the open former file is unchanged
        assert before.read() == (folder / "model.safetensors").read_bytes()
    assert not list(folder.glob(".making-*"))
