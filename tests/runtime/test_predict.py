"""Requests to one pod: every task, both protocols, what the answer says of itself."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING

import httpx
from PIL import Image

if TYPE_CHECKING:
    from pathlib import Path

    from tests.runtime.conftest import Cluster


def post(url: str, document: object, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.post(url, json=document, headers=named, trust_env=False, timeout=30)


def picture() -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (20, 10), "red").save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()).decode()


def test_translates_text_over_v1(cluster: Cluster, models: Path) -> None:
    cluster.declare("translator", models / "tiny-t5")
    pod = cluster.pod()
    answer = post(
        f"{pod.url}/v1/models/default~translator:predict", {"instances": ["quick brown fox"]}
    )
    assert answer.status_code == 200, answer.text
    (text,) = answer.json()["predictions"]
    assert len(text) > 3
    assert answer.headers["x-pilotlight-start"] == "remote"
    assert answer.headers["x-pilotlight-pod"] == "pod-a"
    assert "infer;dur=" in answer.headers["server-timing"]
