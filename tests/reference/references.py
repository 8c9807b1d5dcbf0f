"""What transformers itself answers: pipelines and `generate`, on the folder as it was written.

Texts whose answer could go either way by rounding, since two candidates score nearly alike, are
left out.
"""

import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import transformers
from PIL.Image import Image
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, pipeline

from registry.domain.model import Task
from tests.reference.tiny_models import image_processor

_MARGIN: Final = 1e-3
_WANTED: Final = 8
_CANDIDATES: Final = 16
_WORDS: Final = (
    *("the", "a", "cat", "dog", "sat", "on", "mat", "red", "house", "good", "movie", "one", "42"),
    *("Hello,", "World!", "fox", "jumps"),
)


@dataclass(frozen=True)
class Case:
    """An input and the right answer."""

    given: Any
    answer: Any


def text_candidates(seed: int, mask: str = "") -> list[str]:
    """Texts of one word to nine, none twice; each with `mask` at some place."""
    draw = random.Random(seed)
    texts = []
    for index in range(_CANDIDATES):
        words = draw.sample(_WORDS, 1 + index % 9)
        if mask:
            words.insert(draw.randrange(len(words) + 1), mask)
        texts.append(" ".join(words))
    return list(dict.fromkeys(texts))


def reference_cases(
    folder: Path, task: Task, class_name: str, candidates: Sequence[Any]
) -> list[Case]:
    """Right answers to some of the candidates, whose answers differ."""
    network = getattr(transformers, class_name).from_pretrained(folder).eval()
    cases: list[Case] = []
    with torch.inference_mode():
        answer = _READERS[task](folder, network)
        for each in candidates:
            found, margin = answer(each)
            if margin >= _MARGIN:
                cases.append(Case(each, found))
            if len(cases) == _WANTED:
                break
    return cases


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder)


def _gap(scores: torch.Tensor, count: int = 1) -> float:
    """The smallest difference between the best `count` scores and the next one."""
    best = scores.float().flatten().topk(count + 1).values
    return float((best[:-1] - best[1:]).min())


def _classify_text(folder: Path, network: PreTrainedModel) -> Callable[[str], tuple[Any, float]]:
    classify = pipeline("text-classification", model=network, tokenizer=_tokenizer(folder))

    def answer(text: str) -> tuple[Any, float]:
        scores = classify(text, top_k=None)
        return scores[0], scores[0]["score"] - scores[1]["score"]

    return answer


def _classify_image(folder: Path, network: PreTrainedModel) -> Callable[[Image], tuple[Any, float]]:
    classify = pipeline(
        "image-classification", model=network, image_processor=image_processor(folder)
    )

    def answer(image: Image) -> tuple[Any, float]:
        scores = classify(image, top_k=2)
        return scores[0], scores[0]["score"] - scores[1]["score"]

    return answer


def _classify_tokens(folder: Path, network: PreTrainedModel) -> Callable[[str], tuple[Any, float]]:
    tokenizer = _tokenizer(folder)
    classify = pipeline("token-classification", model=network, tokenizer=tokenizer)

    def answer(text: str) -> tuple[Any, float]:
        logits = network(**tokenizer(text, return_tensors="pt")).logits[0]
        entities = [
            {
                **{name: each[name] for name in ("entity", "index", "word")},
                "score": float(each["score"]),
            }
            for each in classify(text)
        ]
        return entities, min(map(_gap, logits.softmax(-1)))

    return answer


def _fill_mask(folder: Path, network: PreTrainedModel) -> Callable[[str], tuple[Any, float]]:
    fill = pipeline("fill-mask", model=network, tokenizer=_tokenizer(folder))

    def answer(text: str) -> tuple[Any, float]:
        found = fill(text, top_k=6)
        gaps = [a["score"] - b["score"] for a, b in itertools.pairwise(found)]
        fillings = [
            {name: each[name] for name in ("score", "token", "token_str")} for each in found[:5]
        ]
        return fillings, min(gaps)

    return answer


def _embed(folder: Path, network: PreTrainedModel) -> Callable[[str], tuple[Any, float]]:
    tokenizer = _tokenizer(folder)

    def answer(text: str) -> tuple[Any, float]:
        hidden = network(**tokenizer(text, return_tensors="pt")).last_hidden_state
        vector = torch.nn.functional.normalize(hidden.mean(1))[0]
        return vector.tolist(), 1.0

    return answer


def _generate(folder: Path, network: PreTrainedModel) -> Callable[[str], tuple[Any, float]]:
    tokenizer = _tokenizer(folder)

    def answer(text: str) -> tuple[Any, float]:
        tokens = tokenizer(text, return_tensors="pt", return_token_type_ids=False)
        found = network.generate(
            **tokens, do_sample=False, output_logits=True, return_dict_in_generate=True
        )
        new = found.sequences[0][-len(found.logits) :]
        margin = min(_gap(logits) for logits in found.logits)
        return tokenizer.decode(new, skip_special_tokens=True), margin

    return answer


_READERS: Final[Mapping[Task, Callable[[Path, Any], Callable[[Any], tuple[Any, float]]]]] = {
    Task.TEXT_CLASSIFICATION: _classify_text,
    Task.IMAGE_CLASSIFICATION: _classify_image,
    Task.TOKEN_CLASSIFICATION: _classify_tokens,
    Task.FILL_MASK: _fill_mask,
    Task.TEXT_EMBEDDING: _embed,
    Task.TEXT_GENERATION: _generate,
    Task.TEXT_TO_TEXT: _generate,
}
