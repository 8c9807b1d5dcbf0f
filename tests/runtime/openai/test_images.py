"""Images over OpenAI's protocol: the `openai` package at a pod and through the gateway."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import metric, post, predict, unanswered

openai = pytest.importorskip("openai")
pytest.importorskip("diffusers", reason="the extra text-to-image is not installed")
pytestmark = pytest.mark.slow

FEW_STEPS = {"num_inference_steps": 2}
REQUEST: dict[str, Any] = {"model": "painter", "prompt": "a red bird", "size": "32x48"}


@pytest.fixture(scope="module")
def pod(shared_cluster: Cluster, models: Path, diffusion: Path) -> servers.Pod:
    shared_cluster.declare("painter", diffusion)
    shared_cluster.declare("classifier", models / "tiny-bert")
    return shared_cluster.pod("pod-i", slots=2, inference_timeout=600.0)


@pytest.fixture(params=["pod", "gateway"])
def client(
    request: pytest.FixtureRequest, pod: servers.Pod, gateway: servers.Gateway
) -> Iterator[Any]:
    url = pod.url if request.param == "pod" else gateway.url
    with openai.OpenAI(
        base_url=f"{url}/openai/v1", api_key="none", max_retries=0, timeout=600
    ) as client:
        yield client


def opened(encoded: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(encoded)))


def test_images_equal_those_of_v1(client: Any, pod: servers.Pod) -> None:
    response = client.images.generate(
        **REQUEST, n=2, response_format="b64_json", extra_body={"seed": 7, **FEW_STEPS}
    )
    sides = {"width": 32, "height": 48, **FEW_STEPS}
    requests = [{"prompt": REQUEST["prompt"], "seed": seed, **sides} for seed in (7, 8)]
    expected = predict(pod.url, "painter", *requests).json()["predictions"]
    assert [each.b64_json for each in response.data] == [each["image"]["b64"] for each in expected]
    assert response.data[0].b64_json != response.data[1].b64_json
    assert opened(response.data[0].b64_json).size == (32, 48)
    assert opened(response.data[0].b64_json).format == "PNG"
    assert response.created > 1_600_000_000


def test_only_model_and_prompt_are_required(client: Any) -> None:
    first, second = (
        client.images.generate(model="painter", prompt="a bird", size=size, quality="auto")
        for size in ("auto", None)
    )
    assert len(first.data) == 1
    assert opened(first.data[0].b64_json).size == opened(second.data[0].b64_json).size
    assert first.data[0].b64_json != second.data[0].b64_json  # seeds are random


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        pytest.param(
            {"response_format": "url"}, "response_format", "set it to 'b64_json'", id="url"
        ),
        pytest.param({"n": 0}, "n", "must be 1 or more", id="none"),
        pytest.param({"n": 17}, "n", "must be 16 or less", id="too-many"),
        pytest.param({"size": "33x32"}, "size", "a multiple of 4", id="odd"),
        pytest.param({"size": "4096x32"}, "size", "from 4 to 2048", id="large"),
        pytest.param({"size": "0x32"}, "size", "from 4 to 2048", id="flat"),
        pytest.param({"size": "large"}, "size", "must be 'auto' or", id="no-size"),
        pytest.param({"size": "99999x32"}, "size", "must be 'auto' or", id="huge"),
        pytest.param({"prompt": 5}, "prompt", "string", id="prompt"),
        pytest.param({"stream": True}, "stream", "set it to False", id="stream"),
        pytest.param({"output_format": "webp"}, "output_format", "set it to 'png'", id="format"),
        pytest.param({"background": "transparent"}, "background", "not supported", id="background"),
        pytest.param({"style": "vivid"}, "style", "not supported", id="style"),
        pytest.param({"seed": -1}, "seed", "must be 0 or more", id="seed"),
        pytest.param({"num_inference_steps": 201}, "num_inference_steps", "200", id="steps"),
        pytest.param({"guidance_scale": 101}, "guidance_scale", "100", id="guidance"),
    ],
)
def test_refuses_unsupported_fields(
    pod: servers.Pod, fields: dict[str, Any], param: str, message: str
) -> None:
    response = post(f"{pod.url}/openai/v1/images/generations", {**REQUEST, **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


def test_errors_raise_the_clients_exceptions(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="response_format"):
        client.images.generate(**REQUEST, response_format="url")
    with pytest.raises(openai.BadRequestError, match="does not make images"):
        client.images.generate(model="classifier", prompt="a bird")
    with pytest.raises(openai.NotFoundError) as missing:
        client.images.generate(model="nobody", prompt="a bird")
    assert missing.value.code == "model_not_found"


def test_disconnected_client_cancels_its_images(pod: servers.Pod) -> None:
    url = f"{pod.url}/openai/v1/images/generations"
    request = {**REQUEST, "size": "256x256", "n": 16, "num_inference_steps": 200}

    def used() -> float:
        return metric(pod.url, "pilotlight_pod_slots_used")

    def gone() -> float:
        return metric(pod.url, "pilotlight_pod_requests_total", status="gone")

    before = gone()
    with unanswered(url, request):
        servers.wait_until(lambda: used() == 1, what="slot taken")
    servers.wait_until(lambda: used() == 0, what="slot free")
    response = post(url, {**REQUEST, **FEW_STEPS})
    assert response.status_code == 200, response.text
    servers.wait_until(lambda: gone() == before + 1, what="counted")
