"""Every architecture that transformers lists for a pod's tasks, against transformers itself.

Each is asked by every protocol, alone, in one request with others and beside other requests, and
from every tier.
"""

import base64
import io
import itertools
import json
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from registry.domain.model import ModelSpec, Task
from tests.reference.architectures import Architecture, architectures
from tests.reference.outcomes import Outcomes
from tests.reference.reference_pod import Answer, ReferencePod, at_once
from tests.reference.references import Case, reference_cases, text_candidates
from tests.reference.tiny_configs import tiny_config
from tests.reference.tiny_models import (
    NEW_TOKENS,
    write_image_processor,
    write_network,
    write_tokenizer,
)

pytestmark = pytest.mark.filterwarnings("ignore")  # those of networks of unusual sizes
TOLERANCE = 1e-4
LABELS = {0: "O", 1: "B-PER", 2: "B-LOC"}
ENOUGH = 4
"""Cases with different answers; else other weights are drawn."""
TIED = 3
"""Draws with tied embeddings, which repeat the last token in some architectures."""
_LABELLED = (Task.TEXT_CLASSIFICATION, Task.TOKEN_CLASSIFICATION, Task.IMAGE_CLASSIFICATION)


@pytest.mark.parametrize("architecture", architectures())
def test_answers_as_transformers_does(
    architecture: Architecture, tmp_path: Path, reference_pod: ReferencePod, outcomes: Outcomes
) -> None:
    task, kind = architecture.task, architecture.kind
    cases = make_model(architecture, tmp_path)
    name = f"m{zlib.crc32(kind.encode())}"  # a refusal must name the kind by itself
    # Popular checkpoints are declared without a task, as most users do.
    spec = reference_pod.declare(name, tmp_path, task=None if architecture.is_popular else task)
    try:
        with outcomes.judge(task.value, kind) as outcome:
            first = ask_v1(reference_pod, task, name, cases[:1])
            if first.refuses(architecture.names):
                outcome.refuse(first.error)
                return
            check(task, first, cases[:1], "by the first request")
            asks = protocols(task)
            if task is Task.TEXT_GENERATION:
                completion = ask_completion(reference_pod, task, name, cases[:1])
                if completion.refuses(architecture.names):  # served by V1 and V2 only
                    asks.remove(ask_completion)
            ask_everything(reference_pod, task, spec, cases, asks)
    finally:
        reference_pod.withdraw(name)


def make_model(architecture: Architecture, folder: Path) -> list[Case]:
    """Write a model whose answers differ, with inputs and right answers."""
    task = architecture.task
    labels = {"id2label": LABELS, "label2id": {v: k for k, v in LABELS.items()}}
    for seed in range(5):
        fields: dict[str, Any] = dict(labels) if task in _LABELLED else {}
        if task is Task.TEXT_GENERATION:
            # Else the likeliest token is the last one, whatever came before.
            fields |= {"is_decoder": True, "tie_word_embeddings": False}
        if task is Task.TEXT_TO_TEXT and seed >= TIED:
            fields["tie_word_embeddings"] = False
        config = tiny_config(architecture.kind, **fields)
        network = write_network(folder, config, architecture.class_name, seed=seed)
        if task is Task.IMAGE_CLASSIFICATION:
            vision = getattr(config, "vision_config", config)
            size = getattr(vision, "image_size", None) or 64
            write_image_processor(folder, config, size if isinstance(size, int) else size[0])
            candidates: Sequence[Any] = images(seed)
        else:
            is_causal = task is Task.TEXT_GENERATION
            write_tokenizer(folder, network, marks_ends=not is_causal)
            candidates = text_candidates(seed, "<mask>" if task is Task.FILL_MASK else "")
        cases = reference_cases(folder, task, architecture.class_name, candidates)
        distinct = {json.dumps(each.answer) for each in cases}
        if len(cases) >= ENOUGH and len(distinct) > len(cases) / 2:
            return cases
    pytest.skip(f"no weights of {architecture.kind} were found whose answers differ")


def images(seed: int) -> list[Image.Image]:
    """Photographs of several sizes, of random colours in patches."""
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(12):
        pixels = draw.integers(0, 256, (6, 8, 3), np.uint8)
        made.append(Image.fromarray(pixels).resize((80, 60), Image.Resampling.NEAREST))
    return made


def ask_everything(
    pod: ReferencePod,
    task: Task,
    spec: ModelSpec,
    cases: Sequence[Case],
    asks: Sequence[Callable[..., Answer]],
) -> None:
    """Ask a model that has just been loaded by its first request, at each tier."""
    name = spec.name.name
    for ask in asks:
        for case in cases[:2]:
            check(task, ask(pod, task, name, [case]), [case], f"alone by {ask.__name__}")
    for ask in (ask_v1, ask_v2_binary):
        check(task, ask(pod, task, name, cases), cases, f"in one request by {ask.__name__}")
    check_crowd(pod, task, name, cases, asks)
    check(task, ask_v1(pod, task, name, cases[:1]), cases[:1], "after the crowd")
    pod.unload(name)
    again = ask_v2(pod, task, name, cases[:1])
    assert again.start == "disk", again.start
    check(task, again, cases[:1], "from disk")
    pod.move_to_host(spec)
    again = ask_v2_binary(pod, task, name, cases[:1])
    assert again.start == "host", again.start
    check(task, again, cases[:1], "from host")
    check_crowd(pod, task, name, cases, asks)


def check_crowd(
    pod: ReferencePod,
    task: Task,
    name: str,
    cases: Sequence[Case],
    asks: Sequence[Callable[..., Answer]],
) -> None:
    """Ask each case by several protocols, all at once: neighbours change nothing."""
    turns = itertools.cycle(asks)
    crowd = [(next(turns), case) for case in (*cases, *cases[::-1])]
    answers = at_once([partial(ask, pod, task, name, [case]) for ask, case in crowd])
    for (ask, case), answer in zip(crowd, answers, strict=True):
        check(task, answer, [case], f"in a crowd by {ask.__name__}")


def protocols(task: Task) -> list[Callable[..., Answer]]:
    asks: list[Callable[..., Answer]] = [ask_v1, ask_v2, ask_v2_binary]
    if task is Task.TEXT_GENERATION:
        asks.append(ask_completion)
    if task is Task.TEXT_EMBEDDING:
        asks.append(ask_embedding)
    return asks


def ask_v1(pod: ReferencePod, task: Task, name: str, cases: Sequence[Case]) -> Answer:
    if task is Task.IMAGE_CLASSIFICATION:
        return pod.v1(name, [{"image_bytes": {"b64": encoded(each.given)}} for each in cases])
    return pod.v1(name, [each.given for each in cases])


def ask_v2(pod: ReferencePod, task: Task, name: str, cases: Sequence[Case]) -> Answer:
    data = [
        encoded(each.given) if task is Task.IMAGE_CLASSIFICATION else each.given for each in cases
    ]
    tensor = {"name": tensor_name(task), "datatype": "BYTES", "shape": [len(data)], "data": data}
    return pod.v2(name, [tensor])


def ask_v2_binary(pod: ReferencePod, task: Task, name: str, cases: Sequence[Case]) -> Answer:
    if task is Task.IMAGE_CLASSIFICATION:
        pixels = np.stack([np.asarray(each.given) for each in cases])
        return pod.v2_binary(name, {"image": ("UINT8", pixels)})
    return pod.v2_binary_texts(name, [each.given for each in cases])


def ask_completion(pod: ReferencePod, _task: Task, name: str, cases: Sequence[Case]) -> Answer:
    (case,) = cases
    return pod.complete(name, case.given, NEW_TOKENS)


def ask_embedding(pod: ReferencePod, _task: Task, name: str, cases: Sequence[Case]) -> Answer:
    return pod.embed(name, [each.given for each in cases])


def tensor_name(task: Task) -> str:
    return "image" if task is Task.IMAGE_CLASSIFICATION else "text"


def encoded(image: Image.Image) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def check(task: Task, answer: Answer, cases: Sequence[Case], how: str) -> None:
    """Compare an answer with the right ones; raises AssertionError."""
    assert answer.status == 200, f"{how}: status {answer.status}: {answer.error}"
    found = results(task, answer)
    assert len(found) == len(cases)
    for one, case in zip(found, cases, strict=True):
        assert is_near(one, case.answer), f"{how}: {case.given!r}: {one} is not {case.answer}"


def is_near(found: Any, right: Any) -> bool:
    """Whether answers are equal, but for rounding in their numbers."""
    if isinstance(right, dict):
        return isinstance(found, dict) and all(
            name in found and is_near(found[name], value) for name, value in right.items()
        )
    if isinstance(right, list):
        return len(found) == len(right) and all(map(is_near, found, right))
    if isinstance(right, float):
        return bool(abs(found - right) <= TOLERANCE)
    return bool(found == right)


def results(task: Task, answer: Answer) -> list[Any]:
    """The result of each input, of any protocol, in V1's form."""
    document = answer.document
    if "predictions" in document:
        return list(document["predictions"])
    if "choices" in document:
        return [each["text"] for each in document["choices"]]
    if "outputs" not in document:
        return [each["embedding"] for each in document["data"]]
    outputs = {
        each["name"]: answer.arrays[each["name"]]
        if each["name"] in answer.arrays
        else np.array(each["data"]).reshape(each["shape"])
        for each in document["outputs"]
    }
    if task is Task.TEXT_EMBEDDING:
        return list(outputs["embedding"].tolist())
    if task in (Task.TEXT_CLASSIFICATION, Task.IMAGE_CLASSIFICATION):
        pairs = zip(outputs["label"].tolist(), outputs["score"].tolist(), strict=True)
        return [{"label": as_text(label), "score": score} for label, score in pairs]
    (values,) = outputs.values()
    texts = [as_text(value) for value in values.tolist()]
    if task in (Task.TEXT_GENERATION, Task.TEXT_TO_TEXT):
        return texts
    return [json.loads(text) for text in texts]


def as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
