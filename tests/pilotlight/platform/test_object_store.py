"""rclone as the platform runs it."""

from __future__ import annotations

import hashlib
import os
import subprocess
from functools import partial
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EndpointConnectionError

from pilotlight.platform.processes import object_store_command
from tests import servers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mypy_boto3_s3.client import S3Client

BODY = bytes(range(256)) * 300


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("o") / "someone's objects, :s"
    (root / "models" / "a").mkdir(parents=True)
    (root / "models" / "a" / "weights").write_bytes(BODY)
    (root / "models" / "a" / ".hidden").write_bytes(b"secret")
    (root.parent / "outside").write_bytes(b"outside")
    return root


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[S3Client]:
    port = servers.free_port()
    process = subprocess.Popen(
        object_store_command(port, root, root.parent / "sums"),
        stderr=subprocess.DEVNULL,
        env=dict(os.environ),
    )
    s3 = boto3.session.Session().client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="x",
        aws_secret_access_key="x",
        config=Config(retries={"max_attempts": 0}, proxies={}),
    )
    try:
        servers.wait_until(lambda: _answers(s3), what="the object store answers")
        yield s3
    finally:
        s3.close()
        process.terminate()
        process.wait(timeout=60)  # rclone waits 10 s for open connections


def _answers(s3: S3Client) -> bool:
    try:
        s3.list_buckets()
    except EndpointConnectionError:
        return False
    return True


def _read(client: S3Client, key: str, **more: Any) -> bytes:
    answer = client.get_object(Bucket="models", Key=key, **more)
    with answer["Body"] as body:
        return body.read()


def test_serves_objects_and_ranges(client: S3Client) -> None:
    assert _read(client, "a/weights") == BODY
    assert _read(client, "a/weights", Range="bytes=10-19") == BODY[10:20]


def test_lists_no_hidden_files(client: S3Client) -> None:
    found = client.list_objects_v2(Bucket="models", Prefix="a/")
    assert [each["Key"] for each in found.get("Contents", [])] == ["a/weights"]


@pytest.mark.parametrize("key", ["a/nothing", "../outside", "a/../../outside"])
def test_serves_nothing_outside_the_root(client: S3Client, key: str) -> None:
    with pytest.raises(ClientError):
        _read(client, key)


@pytest.mark.slow
def test_etag_is_the_md5_of_the_present_content(client: S3Client, root: Path) -> None:
    replaced = root / "models" / "a" / "replaced"
    for body in (b"first", b"second and longer", b"third, and longer"):
        replaced.write_bytes(body)
        etag = f'"{hashlib.md5(body).hexdigest()}"'
        servers.wait_until(partial(_has_etag, client, "a/replaced", etag), what="the new ETag")


def _has_etag(client: S3Client, key: str, etag: str) -> bool:
    try:
        return client.head_object(Bucket="models", Key=key)["ETag"] == etag
    except ClientError:  # listings are cached for a second
        return False


def test_is_read_only(client: S3Client) -> None:
    with pytest.raises(ClientError):
        client.put_object(Bucket="models", Key="a/new", Body=b"x")
    with pytest.raises(ClientError):
        client.delete_object(Bucket="models", Key="a/weights")
    assert _read(client, "a/weights") == BODY
