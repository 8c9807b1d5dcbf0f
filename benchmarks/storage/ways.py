"""The ways compared, each in a process of its own: `… -m benchmarks.storage.ways WAY FOLDER BYTES`.

Fetches `s3://bench/m` of so many bytes into FOLDER, with the endpoint and credentials of the
environment, and prints the seconds from the first request to the file in its place, and the most
memory it used.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.fresh_memory import touch_free_memory
from benchmarks.peers import has_peer

if TYPE_CHECKING:
    from collections.abc import Callable

    from boto3.s3.transfer import TransferConfig
    from mypy_boto3_s3.client import S3Client

BUCKET: Final = "bench"
KEY: Final = "m/model.safetensors"
MIB: Final = 1024**2
OURS: Final = "pilotlight"
CRT: Final = "boto3's transfer manager, CRT"
CRT_MODULE: Final = "awscrt"


def _client() -> S3Client:
    import boto3  # late: what it can do follows from what can be imported by then
    from botocore.config import Config

    config = Config(response_checksum_validation="when_required", max_pool_connections=32)
    return boto3.session.Session().client("s3", config=config)


def pilotlight(folder: Path) -> Callable[[], Path]:
    """The runtime's disk cache, as a pod uses it: listing, small files, weights, checksums."""
    from registry.domain.model import ModelName, ModelSpec
    from runtime.storage.ranged_download import Bandwidth
    from runtime.storage.storages import Storages
    from runtime.tiers.disk_cache import DiskCache

    storages = Storages()
    cache = DiskCache(folder, storages, Bandwidth(None))
    spec = ModelSpec(ModelName("default", "m"), f"s3://{BUCKET}/m")
    storages.open(spec, folder)  # the others' clients are made beforehand, too

    def fetch() -> Path:
        cache.fetch_assets(spec)
        return cache.fetch_weights(spec)[0]

    return fetch


def transfer_manager(folder: Path) -> Callable[[], Path]:
    """boto3's `download_file` as it comes."""
    from boto3.s3.transfer import TransferConfig

    return _download_file(folder, TransferConfig(preferred_transfer_client="classic"))


def transfer_manager_16(folder: Path) -> Callable[[], Path]:
    """boto3's `download_file`, 16 threads."""
    from boto3.s3.transfer import TransferConfig

    return _download_file(
        folder, TransferConfig(max_concurrency=16, preferred_transfer_client="classic")
    )


def transfer_manager_crt(folder: Path) -> Callable[[], Path]:
    """boto3's transfer manager over AWS's common runtime, which is of the peers' environment.

    Made by hand, since `download_file` would speak TLS to any address.
    """
    if not has_peer(CRT_MODULE):
        raise SystemExit(f"{CRT_MODULE} is not installed")
    import botocore.session
    from s3transfer import crt

    session, target = botocore.session.get_session(), folder / "file"
    region, url = os.environ["AWS_DEFAULT_REGION"], os.environ["AWS_ENDPOINT_URL"]
    credentials = crt.BotocoreCRTCredentialsWrapper(session.get_credentials())
    client = crt.create_s3_crt_client(
        region, crt_credentials_provider=credentials.to_crt_credentials_provider(), use_ssl=False
    )
    serializer = crt.BotocoreCRTRequestSerializer(
        session, {"region_name": region, "endpoint_url": url}
    )
    manager = crt.CRTTransferManager(client, serializer)

    def fetch() -> Path:
        manager.download(BUCKET, KEY, str(target))
        manager.shutdown()  # a result is there a little before the file has its name
        return target

    return fetch


def _download_file(folder: Path, config: TransferConfig) -> Callable[[], Path]:
    client, target = _client(), folder / "file"

    def fetch() -> Path:
        client.download_file(BUCKET, KEY, str(target), Config=config)
        return target

    return fetch


def single_stream(folder: Path) -> Callable[[], Path]:
    """boto3's `get_object`, one stream into a file."""
    client, target = _client(), folder / "file"

    def fetch() -> Path:
        body = client.get_object(Bucket=BUCKET, Key=KEY)["Body"]
        with target.open("wb") as sink:
            for chunk in body.iter_chunks(MIB):
                sink.write(chunk)
        return target

    return fetch


WAYS: Final = {
    OURS: pilotlight,
    "boto3 get_object": single_stream,
    "boto3 download_file": transfer_manager,
    "boto3 download_file, 16 threads": transfer_manager_16,
    CRT: transfer_manager_crt,
}


def main() -> None:
    """Fetch once and say how long it took."""
    folder, size = Path(sys.argv[2]), int(sys.argv[3])
    fetch = WAYS[sys.argv[1]](folder)
    touch_free_memory(2 * size)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    path = fetch()
    seconds, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_s": cpu_s,
                "peak_bytes": most,
                "size_bytes": path.stat().st_size,
            }
        )
    )


if __name__ == "__main__":
    main()
