"""Folders that sentence-transformers saves, against its own vectors."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.reference.outcomes import Outcomes
from tests.reference.reference_pod import ReferencePod, at_once
from tests.reference.references import text_candidates
from tests.reference.tiny_configs import tiny_config
from tests.reference.tiny_models import write_network, write_tokenizer

SECTION = "sentence-transformers"
TOLERANCE = 1e-5
WIDTH = 32
BERT = ("bert", "BertModel")
MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("ignore")]
FOLDERS: Mapping[str, Mapping[str, Any]] = {
    **{f"pooling {mode}": {"pooling": mode} for mode in MODES},
    "poolings cls and mean": {"pooling": ("cls", "mean")},
    "Normalize": {"normalises": True},
    "Dense": {"activation": torch.nn.Tanh()},
    "Dense without activation and Normalize": {"activation": None, "normalises": True},
    "max_seq_length": {"max_seq_length": 6, "normalises": True},
    "do_lower_case": {"do_lower_case": True},
    "default prompt": {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
    "prompt that is not pooled": {
        "prompts": {"query": "query: "},
        "default_prompt_name": "query",
        "include_prompt": False,
    },
    "roberta with mean": {"network_kind": ("roberta", "RobertaModel")},
    "mpnet with mean": {"network_kind": ("mpnet", "MPNetModel")},
    "qwen3 with lasttoken": {"network_kind": ("qwen3", "Qwen3Model"), "pooling": "lasttoken"},
    "t5 encoder with mean": {"network_kind": ("t5", "T5EncoderModel")},
}


@pytest.mark.parametrize("subject", FOLDERS)
def test_vectors_are_those_of_sentence_transformers(
    subject: str, tmp_path: Path, reference_pod: ReferencePod, outcomes: Outcomes
) -> None:
    folder = tmp_path / "model"
    texts = text_candidates(seed=0)[:8]
    right = make_folder(tmp_path / "network", folder, texts, **FOLDERS[subject])
    assert np.abs(right - right[0]).max() > 0.1
    name = "-".join(subject.lower().replace("_", "-").split())
    reference_pod.declare(name, folder)
    try:
        with outcomes.judge(SECTION, subject):
            together = reference_pod.v1(name, texts).results()["predictions"]
            crowd = at_once([partial(reference_pod.embed, name, [text]) for text in texts])
            binary = reference_pod.v2_binary_texts(name, texts)
            binary.results()
            for found in (
                together,
                [each.results()["data"][0]["embedding"] for each in crowd],
                binary.arrays["embedding"],
            ):
                assert np.abs(np.array(found) - right).max() < TOLERANCE
    finally:
        reference_pod.withdraw(name)


def make_folder(
    network: Path,
    folder: Path,
    texts: list[str],
    *,
    network_kind: tuple[str, str] = BERT,
    pooling: Any = "mean",
    activation: Any = False,
    normalises: bool = False,
    include_prompt: bool = True,
    max_seq_length: int | None = None,
    do_lower_case: bool = False,
    **options: Any,
) -> np.ndarray[Any, Any]:
    """Save a model as sentence-transformers does; returns its vectors."""
    from sentence_transformers import SentenceTransformer, models

    kind, class_name = network_kind
    made = write_network(network, tiny_config(kind), class_name, seed=0)
    write_tokenizer(network, made, marks_ends=True)
    modules: list[Any] = [
        models.Transformer(
            str(network), max_seq_length=max_seq_length, do_lower_case=do_lower_case
        ),
        models.Pooling(WIDTH, pooling_mode=pooling, include_prompt=include_prompt),
    ]
    if activation is not False:
        modules.append(models.Dense(WIDTH, 24, activation_function=activation))
    if normalises:
        modules.append(models.Normalize())
    whole = SentenceTransformer(modules=modules, device="cpu", **options)
    whole.save(str(folder), create_model_card=False)
    vectors: np.ndarray[Any, Any] = SentenceTransformer(str(folder), device="cpu").encode(texts)
    return vectors
