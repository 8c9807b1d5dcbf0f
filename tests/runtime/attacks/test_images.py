"""Small bodies whose images decode to gigabytes."""

import base64
import io
from pathlib import Path

import pytest
from PIL import Image

from tests import servers
from tests.runtime.conftest import Cluster
from tests.runtime.http import picture, predict

pytestmark = pytest.mark.slow

MIB = 1 << 20


def encoded(side: int, mode: str = "1", image_format: str = "PNG") -> dict[str, dict[str, str]]:
    buffer = io.BytesIO()
    Image.new(mode, (side, side)).save(buffer, image_format)
    return {"image_bytes": {"b64": base64.b64encode(buffer.getvalue()).decode()}}


def peak_bytes(pod: servers.Pod) -> int:
    lines = Path(f"/proc/{pod.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.fixture(scope="module")
def attacked(shared_cluster: Cluster, models: Path) -> servers.Pod:
    shared_cluster.declare("vit", models / "tiny-vit")
    pod = shared_cluster.pod("pod-a", slots=4)
    assert predict(pod.url, "vit", {"image_bytes": {"b64": picture()}}).status_code == 200
    return pod


def test_many_large_images_in_a_small_body_are_refused(attacked: servers.Pod) -> None:
    bomb = encoded(7000)
    assert 12 * len(bomb["image_bytes"]["b64"]) < 200_000
    before = peak_bytes(attacked)
    response = predict(attacked.url, "vit", *[bomb] * 12)
    assert response.status_code == 400, response.text
    assert "may have 200000000 pixels together" in response.json()["error"]
    assert peak_bytes(attacked) < before + 100 * MIB


def test_images_are_decoded_one_at_a_time(attacked: servers.Pod) -> None:
    before = peak_bytes(attacked)
    response = predict(attacked.url, "vit", *[encoded(5000)] * 8)
    assert response.status_code == 200, response.text
    assert len(response.json()["predictions"]) == 8
    assert peak_bytes(attacked) < before + 300 * MIB


@pytest.mark.parametrize("image_format", ["PPM", "TGA", "PCX", "SGI"])
def test_rare_formats_are_refused(attacked: servers.Pod, image_format: str) -> None:
    response = predict(attacked.url, "vit", encoded(16, "RGB", image_format))
    assert response.status_code == 400, response.text
    assert "formats are JPEG" in response.json()["error"]


@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF"])
def test_usual_formats_are_served(attacked: servers.Pod, image_format: str) -> None:
    response = predict(attacked.url, "vit", encoded(16, "RGB", image_format))
    assert response.status_code == 200, response.text
