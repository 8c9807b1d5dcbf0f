"""An S3 server that the cluster's pods reach, with tiny models in it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

from tests.kubernetes.places import HOST_ADDRESS, REPOSITORY, cache_folder
from tests.servers import S3Server, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.kubernetes.control_plane import ControlPlane

PORT = 9000
KIND = "tiny-bert"
MODEL_URI = f"s3://models/{KIND}"
SECRET = "pilotlight-storage"


def start_object_store(plane: ControlPlane) -> S3Server:
    """Start it beside the control plane, with the model at `MODEL_URI`."""
    server = S3Server(f"http://{HOST_ADDRESS}:{PORT}")
    module = [sys.executable, "-m", "moto.server"]
    plane.run("object-store", [*module, "-H", HOST_ADDRESS, "-p", str(PORT)], **server.environment)
    folder = _tiny_model()
    wait_until(lambda: server.is_up(), what="S3 server accepts")
    server.put_folder(folder, MODEL_URI)
    return server


def _tiny_model() -> Path:
    """The model's folder, made once for all runs."""
    folder = cache_folder() / "models" / KIND
    if not (folder / "config.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        make = [sys.executable, "-m", "pilotlight", "make-model", KIND, str(folder)]
        subprocess.run(make, check=True, cwd=REPOSITORY)
    return folder


def storage_secret(server: S3Server, namespace: str) -> dict[str, Any]:
    """The Secret from which the pods of a pool take their access to S3."""
    metadata = {"name": SECRET, "namespace": namespace}
    data = server.environment
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}
