"""From S3 on loopback to a usable network: the runtime's disk cache, and boto3 with transformers.

Clients are made beforehand, as a pod has them; what was fetched is deleted after each load.
"""

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3

from benchmarks.tiers.contestants import Contestant, Start, from_pretrained
from benchmarks.tiers.models import BUCKET
from benchmarks.tiers.ours import filled_skeleton
from registry.domain.model import ModelName, ModelSpec
from runtime.engines.engine import Skeleton, Skeletons
from runtime.storage.ranged_download import Bandwidth
from runtime.storage.storages import Storages
from runtime.tiers.disk_cache import DiskCache
from runtime.weights.weight_source import DiskWeights


@contextmanager
def remote_ways(model: str, scratch: Path) -> Iterator[list[Contestant]]:
    """Needs the S3 server's address and account in the environment."""
    storages = Storages()
    cache = DiskCache(scratch / "ours", storages, Bandwidth(None))
    try:
        yield [_ours(model, cache), _boto3(model, scratch / "boto3")]
    finally:
        cache.close()


def _ours(model: str, cache: DiskCache) -> Contestant:
    numbers = itertools.count()
    in_use: list[tuple[str, Skeleton]] = []

    def load() -> Any:
        name = ModelName("default", f"m{next(numbers)}")
        spec = ModelSpec(name, f"s3://{BUCKET}/{model}")
        folder = cache.fetch_assets(spec)
        source = DiskWeights(cache.fetch_weights(spec))
        in_use.append((spec.key, filled_skeleton(folder, source, Skeletons())))
        return in_use[-1][1].network

    def end() -> None:
        key, skeleton = in_use.pop()
        skeleton.detach()
        cache.discard(key)

    return Contestant("Pilotlight", load, (Start.S3,), end, is_ours=True)


def _boto3(model: str, folder: Path) -> Contestant:
    client = boto3.session.Session().client("s3")

    def load() -> Any:
        folder.mkdir(parents=True)
        listing = client.list_objects_v2(Bucket=BUCKET, Prefix=f"{model}/")
        for item in listing["Contents"]:
            key = item["Key"]
            client.download_file(BUCKET, key, str(folder / key.removeprefix(f"{model}/")))
        return from_pretrained(folder)

    def end() -> None:
        shutil.rmtree(folder)

    return Contestant("boto3 download_file, from_pretrained", load, (Start.S3,), end)
