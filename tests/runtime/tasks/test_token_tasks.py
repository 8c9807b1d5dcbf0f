"""Answers per token equal those of transformers' pipelines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    pipeline,
)

from runtime.errors import InvalidRequest
from runtime.tasks.processors import load_processor
from tests.runtime.networks import load_network

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = ["the quick fox [MASK] over", "[MASK] dog"]


def saved(models: Path, folder: Path, network_class: Any, **config: Any) -> Path:
    """A network with random weights and tiny-bert's tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = network_class(BertConfig.from_pretrained(models / "tiny-bert", **config))
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(models / "tiny-bert").save_pretrained(folder)
    return folder


def served(folder: Path, texts: list[str]) -> list[Any]:
    """Predictions for texts that are inferred together."""
    processor, network = load_processor(folder, None), load_network(folder)
    inputs = processor.batching.validate(processor.preprocess(processor.read_instances(texts)))
    outputs = processor.postprocess(processor.infer(network, inputs))
    return json.loads(json.dumps(processor.predictions(outputs)))  # type: ignore[no-any-return]


def test_masks_are_filled_as_by_the_pipeline(models: Path, tmp_path: Path) -> None:
    folder = saved(models, tmp_path / "m", BertForMaskedLM)
    texts = [*TEXTS, "[MASK] and [MASK]"]
    expected = pipeline("fill-mask", model=str(folder), device="cpu")(texts)
    by_text = served(folder, texts)
    flat = [*by_text[:2], *by_text[2]]
    for seen, wanted in zip(flat, [*expected[:2], *expected[2]], strict=True):
        assert [each["token"] for each in seen] == [each["token"] for each in wanted]
        scores = [each["score"] for each in wanted]
        assert [each["score"] for each in seen] == pytest.approx(scores, rel=1e-4)
        names = [each["token_str"] for each in wanted]
        assert [each["token_str"] for each in seen] == names


def test_a_text_without_a_mask_is_refused(models: Path, tmp_path: Path) -> None:
    processor = load_processor(saved(models, tmp_path / "m", BertForMaskedLM), None)
    with pytest.raises(InvalidRequest, match=r"must have \[MASK\].*text 1 has not"):
        processor.preprocess(["[MASK]", "none"])


def test_tokens_are_classified_as_by_the_pipeline(models: Path, tmp_path: Path) -> None:
    labels = {0: "O", 1: "PER", 2: "LOC"}
    folder = saved(models, tmp_path / "m", BertForTokenClassification, id2label=labels)
    expected = pipeline("token-classification", model=str(folder), device="cpu")(TEXTS)
    assert any(expected)
    for seen, wanted in zip(served(folder, TEXTS), expected, strict=True):
        keys = ("entity", "index", "word")
        assert [[each[key] for key in keys] for each in seen] == [
            [each[key] for key in keys] for each in wanted
        ]
        scores = [float(each["score"]) for each in wanted]
        assert [each["score"] for each in seen] == pytest.approx(scores, rel=1e-4)
