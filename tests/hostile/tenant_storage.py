"""A tenant's attempts to read another's weights, or anything by the pool's keys, as its storage.

One pod's disk cache on a cluster: `red` and `blue` have folders, claims, buckets and repositories,
granted by prefixes; the pool's keys could read all of them.
"""

import os
import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from registry.domain.model import ModelName, ModelSpec
from registry.domain.tenant_rules import parse_rules
from registry.inference_service.documents import storage_uri_rule
from runtime.errors import LoadFailed
from runtime.storage.access import storage_access
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import StorageOptions, Storages
from runtime.tiers.disk_cache import DiskCache
from runtime.tiers.generation_folder import cache_name
from tests.hostile.mutations import escape_one
from tests.runtime.attacks.recording_web import Web, web

POOLS_KEY: Final = "AKIAPOOLAKIAPOOL"
_MARK: Final = "of-blue"
_FOLDERS: Final = ("red", "blue")
_PREFIXES: Final = (
    "red=file://{folder}/files/red pvc://shared/red s3://red-bucket/ hf://red-org/ "
    "https://red.example/; "
    "blue=file://{folder}/files/blue pvc://shared/blue s3://blue-bucket/ hf://blue-org/ "
    "https://blue.example/"
)
_TO_BLUE: Final = (
    "file://{folder}/files/blue/m", "file://{folder}/files/red/../blue/m",
    "file://{folder}/files/red/link", "file://{folder}/files/red/to/m",
    "file://{folder}/cache/{cached}", "file://{folder}/files/red", "file:///etc",
    "file://localhost{folder}/files/blue/m", "pvc://shared/blue/m", "pvc://shared/red/../blue/m",
    "pvc://shared/red/link", "pvc://shared/red/to/m", "pvc://shared", "pvc://../files/blue/m",
    "pvc://shared/red/m", "file://{folder}/files/red/m", "s3://blue-bucket/m",
    "s3://red-bucket/../blue-bucket/m", "s3://red-bucket/m", "s3://red-bucket.blue-bucket/m",
    "hf://blue-org/m", "hf://red-org/../blue-org/m", "hf://red-org/m:main", "gs://blue-bucket/m",
    "http://127.0.0.1:{port}/blue-bucket/m", "https://blue.example/m.zip",
    "https://red.example@blue.example/m.zip", "https://red.example/..//blue.example/m",
)  # fmt: skip
_OF_RED: Final = ("/red/", "/red-bucket/", "//red-org/", "//red.example/")


def _escape_one(draws: random.Random, uri: str) -> str:
    return escape_one(draws, uri, first=5)


_MUTATIONS: Final[tuple[Callable[[random.Random, str], str], ...]] = (
    lambda _, uri: uri,
    lambda _, uri: uri,
    _escape_one,
    lambda draws, uri: _escape_one(draws, _escape_one(draws, uri)),
    lambda _, uri: uri.replace("..", "%2e%2e"),
    lambda _, uri: uri.replace("..", "%252e%252e"),
    lambda _, uri: uri.replace("..", ".\u2024"),
    lambda _, uri: uri.replace("/blue", "//blue"),
    lambda _, uri: uri.replace("/blue", "/./blue"),
    lambda _, uri: uri.replace("/red/", "/red/%2f"),
    lambda _, uri: uri.replace("blue", "red/../blue"),
    lambda _, uri: uri.replace("blue", "red%2f..%2fblue"),
    lambda _, uri: uri.replace("blue", "blu\u0435"),
    lambda _, uri: uri + "/",
    lambda _, uri: uri + "%00",
    lambda _, uri: uri + "?versionId=1",
    lambda _, uri: uri + "#red",
    lambda _, uri: uri.replace("/m", "\\m"),
    lambda _, uri: uri.replace("://", ":///", 1),
    lambda _, uri: uri.replace("file", "FILE").replace("pvc", "PVC").replace("s3", "S3"),
    lambda _, uri: uri.replace("blue", "BLUE"),
)


@dataclass
class StorageTarget:
    """The disk cache of a pod, and a store on the operator's endpoint that records requests."""

    folder: Path
    cache: DiskCache
    options: StorageOptions
    store: Web

    def draw(self, draws: random.Random) -> str:
        blues = ModelSpec(ModelName("blue", "m"), f"file://{self.folder}/files/blue/m")
        uri = draws.choice(_TO_BLUE).format(
            folder=self.folder, cached=cache_name(blues.key), port=self.store.port
        )
        return draws.choice(_MUTATIONS)(draws, uri)

    def attempt(self, uri: str) -> tuple[str, str]:
        """What became of red's model with this URI, and what it obtained; empty: nothing."""
        spec = ModelSpec(ModelName("red", "m"), uri)
        before = len(self.store.requests)
        if storage_uri_rule(uri) is not None and uri.split("://")[0] not in {"file", "pvc", "s3"}:
            return "invalid", ""  # not declared; the pod's own checks are tried for the others
        try:
            if not uri.startswith(("file:", "pvc:", "s3:")):
                return self._attempt_access(spec)
            found = self.cache.fetch_assets(spec)
            content = (found / "config.json").read_text()
            self.cache.discard(spec.key)
            return "read", f"the weights of blue by {uri!r}" if _MARK in content else ""
        except LoadFailed:
            return "refused", self._problem_of_store(self.store.requests[before:])
        except Exception as error:  # any other one is a fault of ours
            return "error", f"{type(error).__name__} for {uri!r}: {error}"

    def _attempt_access(self, spec: ModelSpec) -> tuple[str, str]:
        """Of what a library downloads: whose credentials it would get."""
        options = self.options
        access = storage_access(spec, options.rules(), options.environment, options.secrets)
        if not access.is_pool:
            has_keys = POOLS_KEY in access.environment.values()
            return "anonymous", "the pool's keys" if has_keys else ""
        is_own = any(each in spec.storage_uri for each in _OF_RED)
        return "own", "" if is_own else f"the pool's access to {spec.storage_uri!r}"

    def _problem_of_store(self, requests: list[tuple[str, dict[str, str]]]) -> str:
        for path, headers in requests:
            if POOLS_KEY in headers.get("authorization", "") and not path.startswith("/red-bucket"):
                return f"a request to {path} with the pool's keys"
        return ""


def start_storage(stack: ExitStack, folder: Path) -> StorageTarget:
    """The target; blue's model is in the cache."""
    for place in ("files", "pvc/shared"):
        for owner in _FOLDERS:
            model = folder / place / owner / "m"
            model.mkdir(parents=True)
            (model / "config.json").write_text(f'["of-{owner}"]')
            (model / "model.safetensors").write_bytes(bytes(64))
        (folder / place / "red" / "link").symlink_to("../blue/m")
        (folder / place / "red" / "to").symlink_to("../blue")
    store = stack.enter_context(web())
    environment = {
        "PATH": os.environ["PATH"],
        "AWS_ACCESS_KEY_ID": POOLS_KEY,
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": store.url,
    }
    options = StorageOptions(
        environment=environment,
        claim_mounts=folder / "pvc",
        read_timeout_s=5.0,
        rules=lambda: parse_rules(prefixes=_PREFIXES.format(folder=folder)),
    )
    cache = DiskCache(folder / "cache", Storages(options), Bandwidth(None))
    stack.callback(cache.close)
    blues = ModelSpec(ModelName("blue", "m"), f"file://{folder}/files/blue/m")
    assert _MARK in (cache.fetch_assets(blues) / "config.json").read_text()
    return StorageTarget(folder, cache, options, store)
