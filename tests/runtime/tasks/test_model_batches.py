"""Batches of real networks: the same results as one by one, at the device and through pods."""

import asyncio
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from common.inference_protocol.bodies import encode_request
from common.inference_protocol.tensors import Tensor, numeric_tensor
from registry.domain.model import ModelName, ModelPolicy, ModelSpec, Task
from runtime.device.queue import InferenceResult
from runtime.device.worker import DeviceWorker
from runtime.loading.model_store import ServedModel
from runtime.tasks.processors import PaddingTrials, load_processor
from tests.runtime.conftest import Cluster
from tests.runtime.http import infer_texts, metric, picture, post_bytes, predict, unanswered
from tests.runtime.networks import load_network
from tests.servers import wait_until

TOGETHER = ModelPolicy(max_batch_size=3, max_batch_wait_s=30.0)
"""A batch waits for three requests of one item."""
TEXTS = ("a fine day", "one more text", "the quick brown fox")
"""Of different lengths, within the limit of padding."""


@pytest.fixture
def serve(models: Path) -> Iterator[Callable[..., ServedModel]]:
    """Builds served models on one device."""
    device = DeviceWorker(threads=1, max_queued=64)
    device.start()

    def make(name: str, policy: ModelPolicy, task: Task | None = None) -> ServedModel:
        folder = models / name
        return ServedModel(
            ModelSpec(ModelName("default", name), folder.as_uri(), task=task, policy=policy),
            processor=load_processor(folder, task),
            network=load_network(folder, task),
            device=device,
        )

    yield make
    device.close()


def infer_all(
    model: ServedModel, requests: Sequence[tuple[Tensor, ...]]
) -> list[InferenceResult[tuple[Tensor, ...]] | BaseException]:
    """The results of concurrent requests."""

    async def run() -> list[InferenceResult[tuple[Tensor, ...]] | BaseException]:
        return await asyncio.gather(
            *(model.infer(inputs) for inputs in requests), return_exceptions=True
        )

    return asyncio.run(run())


def one_by_one(
    model: ServedModel, requests: Sequence[tuple[Tensor, ...]]
) -> list[InferenceResult[tuple[Tensor, ...]] | BaseException]:
    return [infer_all(model, [inputs])[0] for inputs in requests]


@pytest.mark.parametrize(
    ("name", "task", "tolerance"),
    [
        pytest.param("tiny-bert", Task.TEXT_EMBEDDING, 1e-5, id="embedding"),
        pytest.param("tiny-bert", None, 1e-5, id="text-classification"),
        pytest.param("tiny-t5", None, 0, id="text-to-text"),
        pytest.param("tiny-vit", None, 1e-5, id="image-classification"),
    ],
)
def test_batch_gives_each_request_its_result_alone(
    serve: Callable[..., ServedModel], name: str, task: Task | None, tolerance: float
) -> None:
    together, alone = serve(name, TOGETHER, task), serve(name, ModelPolicy(max_batch_size=1), task)
    items: Sequence[Any] = TEXTS
    if name == "tiny-vit":
        items = [Image.new("RGB", (20, 10), color) for color in ("red", "blue", "green")]
    requests = [together.processor.preprocess([item]) for item in items]
    batched, single = infer_all(together, requests), one_by_one(alone, requests)
    for got, expected in zip(batched, single, strict=True):
        assert not isinstance(got, BaseException)
        assert not isinstance(expected, BaseException)
        assert (got.rows, expected.rows) == (3, 1)
        for tensor, reference in zip(got.value, expected.value, strict=True):
            assert tensor.datatype == reference.datatype
            np.testing.assert_allclose(tensor.data, reference.data, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    ("task", "auto"),
    [
        pytest.param(Task.TEXT_EMBEDDING, "AutoModel", id="embedding"),
        pytest.param(
            Task.TEXT_CLASSIFICATION, "AutoModelForSequenceClassification", id="classification"
        ),
        pytest.param(Task.TOKEN_CLASSIFICATION, "AutoModelForTokenClassification", id="tokens"),
        pytest.param(Task.FILL_MASK, "AutoModelForMaskedLM", id="fill-mask"),
    ],
)
def test_a_network_that_sees_padding_gets_each_text_alone(
    serve: Callable[..., ServedModel], models: Path, task: Task, auto: str
) -> None:
    """ConvBERT's convolutions see the padding."""
    name = f"convbert-{task.value}"
    folder = models / name
    torch.manual_seed(0)
    shutil.copytree(models / "tiny-bert", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    (folder / "config.json").unlink()
    config = transformers.ConvBertConfig(
        vocab_size=30522,
        embedding_size=32,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=32,
        initializer_range=0.5,
    )
    getattr(transformers, auto).from_config(config).save_pretrained(folder)
    model, alone = serve(name, ModelPolicy(), task), serve(name, ModelPolicy(), task)

    async def try_out() -> None:
        trials, network = PaddingTrials(), model._network
        await trials.try_out(network, model.processor, model._device, model.device_model)

    asyncio.run(try_out())
    assert model.device_model.max_rows == 1
    texts = [f"{text} [MASK]" for text in TEXTS]
    (together,) = infer_all(model, [model.processor.preprocess(texts)])
    single = one_by_one(alone, [alone.processor.preprocess([text]) for text in texts])
    assert not isinstance(together, BaseException)
    answers = model.processor.predictions(model.processor.postprocess(together.value))
    for answer, expected in zip(answers, single, strict=True):
        assert not isinstance(expected, BaseException)
        (right,) = alone.processor.predictions(alone.processor.postprocess(expected.value))
        assert numbers(answer) == pytest.approx(numbers(right), abs=1e-5)


def numbers(answer: Any) -> list[float]:
    """All numbers of a prediction, in order."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list):
        return [number for part in answer for number in numbers(part)]
    return [float(answer)] if isinstance(answer, int | float) else []


def test_texts_that_end_early_are_not_longer_in_a_batch(serve: Callable[..., ServedModel]) -> None:
    together, alone = serve("tiny-t5", TOGETHER), serve("tiny-t5", ModelPolicy(max_batch_size=1))
    requests = [together.processor.preprocess([text]) for text in TEXTS]
    ended = set()
    for result in one_by_one(alone, requests):
        assert not isinstance(result, BaseException)
        ended.add(int(result.value[0].data[0, 2]))
    for model in (together, alone):  # a token that occurs early in some text now ends a text
        network = model._network
        assert network is not None
        model.processor.end_ids = frozenset({min(ended)})  # type: ignore[attr-defined]
        network.generation_config.min_new_tokens = None
        object.__setattr__(model.processor.batching, "eos_ids", frozenset({min(ended)}))
    batched, single = infer_all(together, requests), one_by_one(alone, requests)
    widths = set()
    for got, expected in zip(batched, single, strict=True):
        assert not isinstance(got, BaseException)
        assert not isinstance(expected, BaseException)
        assert got.rows == 3
        np.testing.assert_array_equal(got.value[0].data, expected.value[0].data)
        widths.add(got.value[0].shape[1])
    assert len(widths) > 1


def test_request_refused_by_the_network_fails_alone(serve: Callable[..., ServedModel]) -> None:
    model = serve("tiny-bert", TOGETHER)
    good = model.processor.preprocess(["one"])
    bad = tuple(
        numeric_tensor(tensor.name, tensor.data + (10**6 if tensor.name == "input_ids" else 0))
        for tensor in good
    )
    first, second, third = infer_all(model, [good, bad, good])
    assert isinstance(second, IndexError)
    assert not isinstance(first, BaseException)
    assert not isinstance(third, BaseException)
    np.testing.assert_array_equal(first.value[0].data, third.value[0].data)


def test_long_text_is_not_batched_with_short_ones(serve: Callable[..., ServedModel]) -> None:
    model = serve("tiny-bert", ModelPolicy(max_batch_size=3, max_batch_wait_s=1.0))
    texts = ["one", "two", "a long text " * 15, "three"]
    results = infer_all(model, [model.processor.preprocess([text]) for text in texts])
    assert [each.rows for each in results if not isinstance(each, BaseException)] == [3, 3, 1, 3]


def at_once(*calls: Callable[[], httpx.Response]) -> list[httpx.Response]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def batches(url: str) -> tuple[float, float]:
    """The number of batches and of their items."""
    return metric(url, "pilotlight_batch_size_count", model="default/m"), metric(
        url, "pilotlight_batch_size_sum", model="default/m"
    )


def test_requests_of_all_protocols_share_a_batch(cluster: Cluster, models: Path) -> None:
    cluster.declare("alone", models / "tiny-bert")
    cluster.declare("m", models / "tiny-bert", policy=TOGETHER)
    entry, other = cluster.pod("entry"), cluster.pod("other", slots=4)
    alone = [predict(other.url, "alone", text).json() for text in TEXTS]
    v1, v2, remote = at_once(
        lambda: predict(other.url, "m", TEXTS[0]),
        lambda: infer_texts(other.url, "m", TEXTS[1]),
        lambda: predict(entry.url, "m", TEXTS[2], predict=other.address),
    )
    assert batches(other.url) == (1, 3)
    assert v1.json()["predictions"][0]["label"] == alone[0]["predictions"][0]["label"]
    assert v2.json()["outputs"][0]["data"] == [alone[1]["predictions"][0]["label"]]
    assert remote.json()["predictions"][0]["label"] == alone[2]["predictions"][0]["label"]
    assert metric(other.url, "pilotlight_queue_seconds_count", model="default/m") == 3


def test_disconnected_client_is_not_in_the_batch(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-bert", policy=TOGETHER)
    pod = cluster.pod(slots=4)
    at_once(*[lambda: predict(pod.url, "m", "x")] * 3)
    before = batches(pod.url)
    url = f"{pod.url}/v1/models/default~m:predict"
    with unanswered(url, {"instances": ["x"]}):
        wait_until(lambda: metric(pod.url, "pilotlight_device_waiting") == 1, what="it waits")
    wait_until(lambda: metric(pod.url, "pilotlight_device_waiting") == 0, what="it left")
    responses = at_once(*[lambda: predict(pod.url, "m", "y")] * 3)
    assert [response.status_code for response in responses] == [200] * 3
    assert batches(pod.url) == (before[0] + 1, before[1] + 3)


def test_invalid_request_is_not_batched(cluster: Cluster, models: Path) -> None:
    cluster.declare("m", models / "tiny-vit", policy=ModelPolicy(max_batch_size=2))
    pod = cluster.pod(slots=2)
    good = predict(pod.url, "m", {"image_bytes": {"b64": picture()}})
    assert good.status_code == 200, good.text
    before = batches(pod.url)
    for value, dtype, message in (
        (np.nan, np.float32, "finite numbers"),
        (0, np.float64, "must be FP32, was FP64"),
    ):
        pixels = np.full((1, 3, 32, 32), value, dtype=dtype)
        response = send_tensor(pod.url, numeric_tensor("pixel_values", pixels))
        assert response.status_code == 400, response.text
        assert message in response.json()["error"]
    small = numeric_tensor("pixel_values", np.zeros((1, 3, 8, 8), np.float32))
    response = send_tensor(pod.url, small)
    assert response.status_code == 400
    assert "rows, 3, 32, 32], was [1, 3, 8, 8]" in response.json()["error"]
    assert batches(pod.url) == before


def send_tensor(url: str, tensor: Tensor) -> httpx.Response:
    """One tensor, sent as by another pod."""
    body = encode_request([tensor])
    return post_bytes(
        f"{url}/v2/models/default~m/infer",
        body.content,
        x_pilotlight_stage="infer",
        **dict(body.headers),
    )
