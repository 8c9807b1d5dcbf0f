"""An S3 server with tiny models, which the cluster's pods can reach."""

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.kubectl import CALL_TIMEOUT_S, kustomize
from tests.kubernetes.places import HOST_ADDRESS, REPOSITORY, cache_folder
from tests.servers import S3Server, wait_until

PORT = 9000
MODEL_URI = "s3://models/tiny-bert"
GENERATIVE_URI = "s3://models/tiny-gpt2"
CONTENT = {
    "tiny-bert": "tiny-bert",
    "tiny-gpt2": "tiny-gpt2",
    "all-minilm-l6-v2": "tiny-bert",
    "t5-small": "tiny-t5",
    "t5-base": "tiny-t5",
    "vit-base": "tiny-vit",
}
"""Kinds of models by folder of the bucket; tiny models replace the samples."""
SECRET = "pilotlight-storage"
GRANT = {"storage-prefixes": "s3:// gs:// hf:// pvc://"}
"""For a tenant's ConfigMap: the pool's credentials read these models."""


def overlay_with_grant(folder: Path) -> list[dict[str, Any]]:
    """The objects of an overlay, whose tenants may read these models."""
    objects = kustomize(folder)
    for each in objects:
        if (each["kind"], each["metadata"]["name"]) == ("ConfigMap", "everyone"):
            each["data"] |= GRANT
    return objects


def start_object_store(plane: ControlPlane) -> S3Server:
    """Start the server beside the control plane, with a tiny model for each entry of `CONTENT`."""
    server = S3Server(f"http://{HOST_ADDRESS}:{PORT}")
    module = [sys.executable, "-m", "moto.server"]
    plane.run("object-store", [*module, "-H", HOST_ADDRESS, "-p", str(PORT)], **server.environment)
    models = tiny_models()
    wait_until(server.is_up, timeout_s=CALL_TIMEOUT_S, what="S3 server accepts")
    for folder, kind in CONTENT.items():
        server.put_folder(models / kind, f"s3://models/{folder}")
    return server


def tiny_models() -> Path:
    """A folder with one model folder per kind, made once for all runs."""
    models = cache_folder() / "models"
    missing = {kind for kind in CONTENT.values() if not (models / kind / "config.json").exists()}
    if missing:
        models.mkdir(parents=True, exist_ok=True)
        makes = [f"make_model({kind!r}, Path({str(models / kind)!r}))" for kind in sorted(missing)]
        imports = [
            "from pathlib import Path",
            "from pilotlight.sample_models.make_model import make_model",
        ]
        code = "; ".join([*imports, *makes])
        subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY)
    return models


def storage_secret(server: S3Server, namespace: str) -> dict[str, Any]:
    """The Secret from which the pods of a pool read their S3 credentials."""
    metadata = {"name": SECRET, "namespace": namespace}
    data = server.environment
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data}
