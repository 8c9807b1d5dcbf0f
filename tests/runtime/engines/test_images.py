"""Text to image: the pictures that diffusers makes, in steps, through a pod's protocols."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import sys
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

from registry.domain.model import Tier
from runtime.errors import InvalidRequest, LoadFailed, ModelInvalid
from runtime.tasks.processors import load_processor
from runtime.tasks.text_to_image import TextToImage
from runtime.wire.tensors import bytes_tensor, numeric_tensor
from tests.runtime.http import get, post, predict
from tests.runtime.local_pod import LocalPod, local_pod, spec_of
from tests.servers import copy_model

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from registry.domain.model import ModelSpec
    from tests.runtime.conftest import Cluster

pytest.importorskip("diffusers", reason="the extra text-to-image is not installed")

WISH = {"prompt": "a red bird", "seed": 7, "num_inference_steps": 3, "width": 32, "height": 48}


@pytest.fixture
def folder(diffusion: Path) -> Path:
    return diffusion


def run(folder: Path, work: Callable[[LocalPod], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with local_pod(folder, **settings) as pod:
            await work(pod)

    asyncio.run(main())


async def pixels(pod: LocalPod, spec: ModelSpec, *wishes: dict[str, Any]) -> np.ndarray[Any, Any]:
    entry = pod.loader.store.acquire(spec.key)
    assert entry is not None
    processor = entry.model.processor
    inputs = processor.batching.validate(processor.preprocess(processor.read_instances(wishes)))
    ran = await entry.model.infer(inputs)
    await pod.loader.store.release(entry)
    values: np.ndarray[Any, Any] = ran.value[0].data
    return values


def diffusers_picture(folder: Path, wish: dict[str, Any]) -> np.ndarray[Any, Any]:
    """What diffusers' own pipeline draws."""
    from diffusers import StableDiffusionPipeline

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pipeline = StableDiffusionPipeline.from_pretrained(folder)
        pipeline.set_progress_bar_config(disable=True)
        picture = pipeline(
            wish["prompt"],
            num_inference_steps=wish["num_inference_steps"],
            width=wish["width"],
            height=wish["height"],
            generator=torch.Generator("cpu").manual_seed(wish["seed"]),
        ).images[0]
    return np.asarray(picture)


def test_pictures_are_those_of_diffusers_from_every_tier(folder: Path, tmp_path: Path) -> None:
    spec = spec_of("images", folder)
    expected = diffusers_picture(folder, WISH).astype(int)
    assert expected.shape == (48, 32, 3)
    assert expected.std() > 1

    async def work(pod: LocalPod) -> None:
        for tier in (Tier.REMOTE, Tier.DISK, Tier.HOST):
            if tier is Tier.HOST:
                await pod.demote(spec)
            assert await pod.load(spec) is tier
            (made,) = await pixels(pod, spec, WISH)
            assert np.abs(made.astype(int) - expected).max() <= 1
            await pod.unload(spec)
        assert pod.loader.store.used_bytes == 0

    run(tmp_path, work, host_bytes=1 << 30)


def test_other_models_have_the_device_between_steps(
    folder: Path, models: Path, tmp_path: Path
) -> None:
    images, texts = spec_of("images", folder), spec_of("texts", models / "tiny-bert")

    async def work(pod: LocalPod) -> None:
        await pod.load(images)
        await pod.load(texts)
        picture = asyncio.create_task(pixels(pod, images, {**WISH, "num_inference_steps": 200}))
        await asyncio.sleep(0)
        await pod.answer(texts)
        assert not picture.done()
        picture.cancel()  # it ends at the next step
        with pytest.raises(asyncio.CancelledError):
            await picture

    run(tmp_path, work)


def test_each_picture_of_a_request_has_a_seed_of_its_own(folder: Path, tmp_path: Path) -> None:
    spec = spec_of("images", folder)

    async def work(pod: LocalPod) -> None:
        await pod.load(spec)
        first, second, third = await pixels(pod, spec, WISH, {**WISH, "seed": 8}, WISH)
        assert (first == third).all()
        assert (first != second).any()

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        pytest.param({}, "a string 'prompt'", id="no prompt"),
        pytest.param({"prompt": 1}, "a string 'prompt'", id="number"),
        pytest.param({**WISH, "steps": 1}, r"has unknown fields \['steps'\]", id="unknown"),
        pytest.param({**WISH, "width": 33}, "a multiple of 4", id="odd"),
        pytest.param({**WISH, "height": 4096}, "from 4 to 2048", id="large"),
        pytest.param({**WISH, "num_inference_steps": 0}, "from 1 to 200", id="no steps"),
        pytest.param({**WISH, "num_inference_steps": True}, "from 1 to 200", id="boolean"),
        pytest.param({**WISH, "seed": -1}, "'seed' must be", id="seed"),
        pytest.param({**WISH, "guidance_scale": float("nan")}, "a number from 0", id="guidance"),
    ],
)
def test_wrong_wishes_are_refused(folder: Path, wish: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        load_processor(folder, None).read_instances([wish])


def test_pictures_of_one_request_have_one_size(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="one width and one height"):
        load_processor(folder, None).read_instances([WISH, {**WISH, "width": 64}])


def test_v2_tensors_say_what_v1_says(folder: Path) -> None:
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


def test_tensors_from_other_pods_are_checked(folder: Path) -> None:
    processor = load_processor(folder, None)
    assert isinstance(processor, TextToImage)
    inputs = processor.preprocess(processor.read_instances([WISH]))
    assert processor.batching.validate(inputs) == inputs
    steps = numeric_tensor("steps", np.array([10_000]))
    with pytest.raises(InvalidRequest, match="'steps' must hold values from 1 to 200"):
        processor.batching.validate([steps if each.name == "steps" else each for each in inputs])


# Models


def test_without_diffusers_the_load_says_what_to_install(
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
def test_other_pipelines_are_refused(
    folder: Path,
    tmp_path: Path,
    file: str,
    change: Callable[[dict[str, Any]], None],
    message: str,
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


def test_a_pipeline_with_pickled_weights_is_refused(folder: Path, tmp_path: Path) -> None:
    changed = copy_model(folder, tmp_path / "changed")
    weights = changed / "unet" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))

    async def work(pod: LocalPod) -> None:
        with pytest.raises(ModelInvalid, match="has no unet/diffusion_pytorch_model"):
            await pod.load(spec_of("images", changed))

    run(tmp_path, work)


def test_a_pod_answers_in_v1_and_v2(cluster: Cluster, folder: Path) -> None:
    cluster.declare("images", folder)
    pod = cluster.pod("images")
    answer = predict(pod.url, "images", WISH)
    assert answer.status_code == 200, answer.text
    encoded = answer.json()["predictions"][0]["image"]["b64"]
    picture = Image.open(io.BytesIO(base64.b64decode(encoded)))
    assert (picture.format, picture.size, picture.mode) == ("PNG", (32, 48), "RGB")
    inputs = [
        {"name": name, "datatype": kind, "shape": [1], "data": [WISH[name]]}
        for name, kind in (
            ("prompt", "BYTES"),
            *((name, "INT64") for name in ("seed", "num_inference_steps", "width", "height")),
        )
    ]
    url = f"{pod.url}/v2/models/default~images"
    (output,) = post(f"{url}/infer", {"inputs": inputs}).json()["outputs"]
    assert (output["name"], output["datatype"], output["data"]) == ("image", "BYTES", [encoded])
    assert get(url).json()["outputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    refused = predict(pod.url, "images", {**WISH, "width": 33})
    assert refused.status_code == 400
    assert "a multiple of 4" in refused.json()["error"]
