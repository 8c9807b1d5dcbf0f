"""Classes of texts and tokens: as of transformers' pipelines, and in forms of KServe's server."""

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    pipeline,
)

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import Tensor
from registry.domain.model import Answers, Scores, TaskOptions
from runtime.errors import ModelInvalid
from runtime.tasks.processors import load_processor
from tests.runtime.networks import load_network

TEXTS = ["the quick fox", "a dog"]
LABELS = {0: "toxic", 1: "rude", 2: "spam"}
TOKENS = ["the quick fox [MASK] over", "[MASK] dog"]
MASKED = ["the [MASK] fox jumps", "[MASK] dog"]


def saved(models: Path, folder: Path, network_class: Any, **config: Any) -> Path:
    """A network with random weights and tiny-bert's tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        network = network_class(BertConfig.from_pretrained(models / "tiny-bert", **config))
    network.save_pretrained(folder)
    AutoTokenizer.from_pretrained(models / "tiny-bert").save_pretrained(folder)
    return folder


def kserve(scores: Scores = Scores.BEST) -> TaskOptions:
    return TaskOptions(answers=Answers.KSERVE, scores=scores)


def served(
    folder: Path, texts: list[str], options: TaskOptions
) -> tuple[tuple[Tensor, ...], list[Any]]:
    """V2 outputs and V1 predictions for texts that are inferred together."""
    processor, network = load_processor(folder, None, options=options), load_network(folder)
    inputs = processor.batching.validate(processor.preprocess(processor.read_instances(texts)))
    outputs = processor.postprocess(processor.infer(network, inputs))
    (first, *_) = processor.output_types()
    assert (first["name"], first["datatype"]) == (outputs[0].name, outputs[0].datatype)
    assert len(first["shape"]) == len(outputs[0].shape)
    return outputs, json.loads(json.dumps(processor.predictions(outputs)))


@pytest.fixture(scope="module")
def classifier(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier") / "m"
    return saved(models, folder, BertForSequenceClassification, id2label=LABELS)


@pytest.fixture(scope="module")
def masked(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(models, tmp_path_factory.mktemp("masked") / "m", BertForMaskedLM)


@pytest.mark.parametrize(
    ("labels", "problem"),
    [
        pytest.param(3, None, id="one-of-several"),
        pytest.param(3, "single_label_classification", id="single"),
        pytest.param(3, "multi_label_classification", id="several-at-once"),
        pytest.param(1, None, id="one-label"),
        pytest.param(1, "regression", id="regression"),
        pytest.param(2, "regression", id="regression-of-two"),
    ],
)
def test_scores_are_those_of_the_pipeline(
    models: Path, tmp_path: Path, labels: int, problem: str | None
) -> None:
    names = {index: f"L{index}" for index in range(labels)}
    folder = saved(
        models, tmp_path / "m", BertForSequenceClassification, id2label=names, problem_type=problem
    )
    made = pipeline("text-classification", model=str(folder), device="cpu")
    _, best = served(folder, TEXTS, TaskOptions())
    _, every = served(folder, TEXTS, TaskOptions(scores=Scores.ALL))
    check_scored(best, made(TEXTS))
    for seen, expected in zip(every, made(TEXTS, top_k=None), strict=True):
        check_scored(seen, expected)


def check_scored(seen: list[Any], expected: list[Any]) -> None:
    assert [each["label"] for each in seen] == [each["label"] for each in expected]
    scores = [each["score"] for each in expected]
    assert [each["score"] for each in seen] == pytest.approx(scores, rel=1e-4)


def test_all_scores_have_a_row_for_each_text_in_v2(classifier: Path) -> None:
    (label, score), _ = served(classifier, TEXTS, TaskOptions(scores=Scores.ALL))
    assert label.shape == score.shape == (2, 3)
    assert sorted(label.data[0].tolist()) == [b"rude", b"spam", b"toxic"]
    assert score.data.sum(axis=1) == pytest.approx([1, 1])


def test_large_logits_have_scores_without_overflow(models: Path, tmp_path: Path) -> None:
    folder = saved(models, tmp_path / "m", BertForSequenceClassification, num_labels=1)
    processor = load_processor(folder, None)
    from common.inference_protocol.tensors import numeric_tensor

    logits = numeric_tensor("logits", np.array([[500.0], [-500.0]], np.float32))
    assert [each["score"] for each in processor.predictions(processor.postprocess([logits]))] == [
        1.0,
        0.0,
    ]


def test_kserve_answers_a_classification_with_the_index(classifier: Path) -> None:
    _, own = served(classifier, TEXTS, TaskOptions())
    (output,), predictions = served(classifier, TEXTS, kserve())
    assert (output.name, output.datatype) == ("output-0", "INT64")
    assert [LABELS[index] for index in predictions] == [each["label"] for each in own]
    assert output.data.tolist() == predictions


@pytest.mark.parametrize("scores", [Scores.ALL, Scores.LOGITS])
def test_kserve_answers_a_classification_with_numbers(classifier: Path, scores: Scores) -> None:
    _, own = served(classifier, TEXTS, TaskOptions(scores=scores))
    (output,), predictions = served(classifier, TEXTS, kserve(scores))
    for text, seen, expected in zip(output.data, predictions, own, strict=True):
        by_label = {each["label"]: each["score"] for each in expected}
        numbers = [by_label[LABELS[index]] for index in range(3)]
        assert ast.literal_eval(text.decode()) == {int(key): seen[key] for key in seen}
        assert list(seen) == ["0", "1", "2"]
        digits = 5e-5 if scores is Scores.ALL else 1e-5
        assert list(seen.values()) == pytest.approx(numbers, abs=digits)


def test_kserve_fills_masks_with_words(masked: Path) -> None:
    _, own = served(masked, MASKED, TaskOptions())
    (output,), predictions = served(masked, MASKED, kserve())
    assert predictions == [each[0]["token_str"] for each in own]
    assert output.shape == (2,)


def test_masks_with_numbers_are_refused(masked: Path) -> None:
    with pytest.raises(ModelInvalid, match="one for each token"):
        load_processor(masked, None, options=kserve(Scores.ALL))


def test_kserve_answers_a_class_for_each_token(models: Path, tmp_path: Path) -> None:
    labels = {0: "O", 1: "PER", 2: "LOC"}
    folder = saved(models, tmp_path / "m", BertForTokenClassification, id2label=labels)
    (output,), predictions = served(folder, TEXTS, kserve())
    assert output.shape == (2, 1, len(predictions[0][0]))
    assert {label for row in predictions for label in row[0]} <= {0, 1, 2}
    (texts,), numbers = served(folder, TEXTS, kserve(Scores.ALL))
    assert texts.shape == (2, output.shape[2])
    for row, ((classes, *_), *_) in zip(numbers, zip(predictions, strict=True), strict=True):
        assert [int(max(each, key=each.get)) for each in row] == classes
    bare = TaskOptions(answers=Answers.KSERVE, adds_special_tokens=False)
    (shorter,), _ = served(folder, TEXTS, bare)
    assert shorter.shape[2] == output.shape[2] - 2


def test_masks_are_filled_as_by_the_pipeline(models: Path, tmp_path: Path) -> None:
    folder = saved(models, tmp_path / "m", BertForMaskedLM)
    texts = [*TOKENS, "[MASK] and [MASK]"]
    expected = pipeline("fill-mask", model=str(folder), device="cpu")(texts)
    by_text = served(folder, texts, TaskOptions())[1]
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
    expected = pipeline("token-classification", model=str(folder), device="cpu")(TOKENS)
    assert any(expected)
    for seen, wanted in zip(served(folder, TOKENS, TaskOptions())[1], expected, strict=True):
        keys = ("entity", "index", "word")
        assert [[each[key] for key in keys] for each in seen] == [
            [each[key] for key in keys] for each in wanted
        ]
        scores = [float(each["score"]) for each in wanted]
        assert [each["score"] for each in seen] == pytest.approx(scores, rel=1e-4)


def test_scores_that_are_no_numbers_are_null(models: Path, tmp_path: Path) -> None:
    """Such as of a network whose numbers overflow: the output's text is JSON all the same."""
    labels = {0: "PER", 1: "LOC"}
    folder = saved(models, tmp_path / "m", BertForTokenClassification, id2label=labels)
    processor, network = load_processor(folder, None), load_network(folder)
    network.classifier.weight.fill_(float("nan"))
    (output,) = processor.postprocess(processor.infer(network, processor.preprocess(["a fox"])))

    def refuse(name: str) -> None:
        pytest.fail(f"{name} is not JSON")

    found = json.loads(output.data[0], parse_constant=refuse)
    assert {each["score"] for each in found} == {None}
