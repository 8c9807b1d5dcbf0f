"""Text to image: equal to diffusers, in steps, through a pod's protocols."""

import asyncio
import base64
import io
import json
import sys
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import bytes_tensor, numeric_tensor
from registry.domain.model import ModelSpec, Tier
from runtime.errors import LoadFailed, ModelInvalid
from runtime.tasks.processors import load_processor
from runtime.tasks.text_to_image import TextToImage
from tests.runtime.conftest import Cluster
from tests.runtime.http import get, post, predict
from tests.runtime.local_pod import LocalPod, local_pod, spec_of
from tests.servers import copy_model

pytest.importorskip("diffusers", reason="the extra text-to-image is not installed")
pytestmark = pytest.mark.slow

REQUEST = {"prompt": "a red bird", "seed": 7, "num_inference_steps": 3, "width": 32, "height": 48}


@pytest.fixture
def folder(diffusion: Path) -> Path:
    return diffusion


def run(folder: Path, work: Callable[[LocalPod], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with local_pod(folder, **settings) as pod:
            await work(pod)

    asyncio.run(main())


async def pixels(pod: LocalPod, spec: ModelSpec, *requests: dict[str, Any]) -> np.ndarray[Any, Any]:
    entry = pod.loader.store.acquire(spec.key)
    assert entry is not None
    processor = entry.model.processor
    inputs = processor.batching.validate(processor.preprocess(processor.read_instances(requests)))
    result = await entry.model.infer(inputs)
    pod.loader.store.end_use(entry)
    values: np.ndarray[Any, Any] = result.value[0].data
    return values


def diffusers_image(folder: Path, request: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Images of diffusers' own pipeline."""
    from diffusers import StableDiffusionPipeline

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = StableDiffusionPipeline.from_pretrained(folder)
        pipeline.set_progress_bar_config(disable=True)
        image = pipeline(
            request["prompt"],
            num_inference_steps=request["num_inference_steps"],
            width=request["width"],
            height=request["height"],
            generator=torch.Generator("cpu").manual_seed(request["seed"]),
        ).images[0]
    return np.asarray(image)


def test_images_equal_those_of_diffusers_from_every_tier(folder: Path, tmp_path: Path) -> None:
    spec = spec_of("images", folder)
    expected = diffusers_image(folder, REQUEST).astype(int)
    assert expected.shape == (48, 32, 3)
    assert expected.std() > 1

    async def work(pod: LocalPod) -> None:
        for tier in (Tier.REMOTE, Tier.DISK, Tier.HOST):
            if tier is Tier.HOST:
                await pod.demote(spec)
            assert await pod.load(spec) is tier
            (image,) = await pixels(pod, spec, REQUEST)
            assert np.abs(image.astype(int) - expected).max() <= 1
            await pod.unload(spec)
        assert pod.loader.store.used_bytes == 0

    run(tmp_path, work, host_bytes=1 << 30)


def test_other_models_run_between_steps(folder: Path, models: Path, tmp_path: Path) -> None:
    images, texts = spec_of("images", folder), spec_of("texts", models / "tiny-bert")

    async def work(pod: LocalPod) -> None:
        await pod.load(images)
        await pod.load(texts)
        image = asyncio.create_task(pixels(pod, images, {**REQUEST, "num_inference_steps": 200}))
        await asyncio.sleep(0)
        await pod.answer(texts)
        assert not image.done()
        image.cancel()  # it ends at the next step
        with pytest.raises(asyncio.CancelledError):
            await image

    run(tmp_path, work)


def test_each_image_of_a_request_has_its_own_seed(folder: Path, tmp_path: Path) -> None:
    spec = spec_of("images", folder)

    async def work(pod: LocalPod) -> None:
        await pod.load(spec)
        first, second, third = await pixels(pod, spec, REQUEST, {**REQUEST, "seed": 8}, REQUEST)
        assert (first == third).all()
        assert (first != second).any()

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        pytest.param({}, "a string 'prompt'", id="no prompt"),
        pytest.param({"prompt": 1}, "a string 'prompt'", id="number"),
        pytest.param({**REQUEST, "steps": 1}, r"has unknown fields \['steps'\]", id="unknown"),
        pytest.param({**REQUEST, "width": 33}, "a multiple of 4", id="odd"),
        pytest.param({**REQUEST, "height": 4096}, "from 4 to 2048", id="large"),
        pytest.param({**REQUEST, "num_inference_steps": 0}, "from 1 to 200", id="no steps"),
        pytest.param({**REQUEST, "num_inference_steps": True}, "from 1 to 200", id="boolean"),
        pytest.param({**REQUEST, "seed": -1}, "'seed' must be", id="seed"),
        pytest.param({**REQUEST, "guidance_scale": float("nan")}, "a number from 0", id="guidance"),
    ],
)
def test_refuses_invalid_requests(folder: Path, instance: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        load_processor(folder, None).read_instances([instance])


def test_images_of_one_request_have_one_size(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="one width and one height"):
        load_processor(folder, None).read_instances([REQUEST, {**REQUEST, "width": 64}])


def test_v2_tensors_equal_v1_instances(folder: Path) -> None:
    processor = load_processor(folder, None)
    tensors = [
        bytes_tensor("prompt", [b"a red bird", b"b"]),
        numeric_tensor("seed", np.array([7, 8])),
        numeric_tensor("num_inference_steps", np.array([3])),
    ]
    common = {"num_inference_steps": 3}
    assert processor.read_tensors(tensors) == processor.read_instances(
        [{"prompt": "a red bird", "seed": 7, **common}, {"prompt": "b", "seed": 8, **common}]
    )


def test_validates_tensors_from_other_pods(folder: Path) -> None:
    processor = load_processor(folder, None)
    assert isinstance(processor, TextToImage)
    inputs = processor.preprocess(processor.read_instances([REQUEST]))
    assert processor.batching.validate(inputs) == inputs
    steps = numeric_tensor("steps", np.array([10_000]))
    with pytest.raises(InvalidRequest, match="'steps' must hold values from 1 to 200"):
        processor.batching.validate([steps if each.name == "steps" else each for each in inputs])


def test_load_without_diffusers_names_the_extra_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "diffusers", None)
    spec = spec_of("images", folder)

    async def work(pod: LocalPod) -> None:
        with pytest.raises(LoadFailed, match="install the extra text-to-image"):
            await pod.load(spec)

    run(tmp_path, work)


def other_pipeline(index: dict[str, Any]) -> None:
    index["_class_name"] = "FluxPipeline"


def other_part(index: dict[str, Any]) -> None:
    index["unet"] = ["my_code", "UNet"]


def other_scheduler(config: dict[str, Any]) -> None:
    config["_class_name"] = "DiffusionPipeline"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        pytest.param("model_index.json", other_pipeline, "'FluxPipeline'", id="pipeline"),
        pytest.param("model_index.json", other_part, "'my_code', 'UNet'", id="code"),
        pytest.param(
            "scheduler/scheduler_config.json", other_scheduler, "no scheduler", id="scheduler"
        ),
        pytest.param(
            "unet/config.json",
            lambda config: config.update(in_channels=5),
            "weights do not fit",
            id="shape",
        ),
    ],
)
def test_refuses_other_pipelines(
    folder: Path, tmp_path: Path, file: str, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    changed = copy_model(folder, tmp_path / "changed")
    fields = json.loads((changed / file).read_text())
    change(fields)
    (changed / file).unlink()
    (changed / file).write_text(json.dumps(fields))

    async def work(pod: LocalPod) -> None:
        with pytest.raises(ModelInvalid, match=message):
            await pod.load(spec_of("images", changed))

    run(tmp_path, work)


def test_refuses_a_pipeline_with_pickled_weights(folder: Path, tmp_path: Path) -> None:
    changed = copy_model(folder, tmp_path / "changed")
    weights = changed / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))

    async def work(pod: LocalPod) -> None:
        with pytest.raises(ModelInvalid, match="has no unet/diffusion_pytorch_model"):
            await pod.load(spec_of("images", changed))

    run(tmp_path, work)


def test_pod_responds_in_v1_and_v2(cluster: Cluster, folder: Path) -> None:
    cluster.declare("images", folder)
    pod = cluster.pod("images")
    response = predict(pod.url, "images", REQUEST)
    assert response.status_code == 200, response.text
    encoded = response.json()["predictions"][0]["image"]["b64"]
    image = Image.open(io.BytesIO(base64.b64decode(encoded)))
    assert (image.format, image.size, image.mode) == ("PNG", (32, 48), "RGB")
    inputs = [
        {"name": name, "datatype": kind, "shape": [1], "data": [REQUEST[name]]}
        for name, kind in (
            ("prompt", "BYTES"),
            *((name, "INT64") for name in ("seed", "num_inference_steps", "width", "height")),
        )
    ]
    url = f"{pod.url}/v2/models/default~images"
    (output,) = post(f"{url}/infer", {"inputs": inputs}).json()["outputs"]
    assert (output["name"], output["datatype"], output["data"]) == ("image", "BYTES", [encoded])
    assert get(url).json()["outputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    refused = predict(pod.url, "images", {**REQUEST, "width": 33})
    assert refused.status_code == 400
    assert "a multiple of 4" in refused.json()["error"]
