from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from pilotlight.platform.object_server import ObjectServer, Span, parse_range

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mypy_boto3_s3.client import S3Client

BODY = bytes(range(256)) * 300


@pytest.fixture
def client(tmp_path: Path) -> Iterator[S3Client]:
    root = tmp_path / "objects"
    (root / "models" / "a" / "sub").mkdir(parents=True)
    (root / "models" / "a" / "weights").write_bytes(BODY)
    (root / "models" / "a" / "empty").write_bytes(b"")
    (root / "models" / "a" / "sub" / "x y&z").write_bytes(b"odd")
    (root / "models" / "a" / ".hidden").write_bytes(b"secret")
    (root / "models" / "b").write_bytes(b"b")
    (tmp_path / "outside").write_bytes(b"outside")
    with ObjectServer(("127.0.0.1", 0), root) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        port = server.server_address[1]
        s3 = boto3.session.Session().client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            region_name="us-east-1",
            aws_access_key_id="x",
            aws_secret_access_key="x",
            config=Config(retries={"max_attempts": 0}, proxies={}),
        )
        yield s3
        s3.close()
        server.shutdown()
        thread.join()


def _read(client: S3Client, key: str, **more: Any) -> bytes:
    answer = client.get_object(Bucket="models", Key=key, **more)
    with answer["Body"] as body:
        return body.read()


def test_serves_whole_objects(client: S3Client) -> None:
    assert _read(client, "a/weights") == BODY
    assert _read(client, "a/empty") == b""
    assert _read(client, "a/sub/x y&z") == b"odd"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param("bytes=0-9", BODY[:10], id="head"),
        pytest.param("bytes=100-", BODY[100:], id="from"),
        pytest.param("bytes=-5", BODY[-5:], id="suffix"),
        pytest.param("bytes=10-999999999", BODY[10:], id="past the end"),
    ],
)
def test_serves_ranges(client: S3Client, wanted: str, expected: bytes) -> None:
    assert _read(client, "a/weights", Range=wanted) == expected


def test_lists_all_objects_but_hidden_ones_page_by_page(client: S3Client) -> None:
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket="models", PaginationConfig={"PageSize": 2}
    )
    keys = [item["Key"] for page in pages for item in page.get("Contents", [])]
    assert keys == ["a/empty", "a/sub/x y&z", "a/weights", "b"]


def test_groups_by_delimiter(client: S3Client) -> None:
    listing = client.list_objects_v2(Bucket="models", Delimiter="/")
    assert [group["Prefix"] for group in listing["CommonPrefixes"]] == ["a/"]
    assert [item["Key"] for item in listing["Contents"]] == ["b"]


@pytest.mark.parametrize(
    ("key", "more", "code"),
    [
        pytest.param("nope", {}, "NoSuchKey", id="absent"),
        pytest.param("a/.hidden", {}, "NoSuchKey", id="hidden"),
        pytest.param("../outside", {}, "NoSuchKey", id="outside"),
        pytest.param("a/weights", {"Range": "bytes=999999-"}, "InvalidRange", id="range"),
        pytest.param("a/weights", {"IfMatch": '"other"'}, "PreconditionFailed", id="changed"),
    ],
)
def test_says_why_not(client: S3Client, key: str, more: dict[str, str], code: str) -> None:
    with pytest.raises(ClientError) as error:
        _read(client, key, **more)
    assert error.value.response["Error"]["Code"] in {code, "NoSuchBucket"}


def test_refuses_to_write_and_says_where_to_put_files(client: S3Client) -> None:
    with pytest.raises(ClientError, match="read-only: copy files into"):
        client.put_object(Bucket="models", Key="new", Body=b"new")


@given(st.integers(1, 5000), st.integers(0, 6000), st.integers(0, 6000))
def test_a_span_lies_within_the_object(size: int, first: int, last: int) -> None:
    span = parse_range(f"bytes={first}-{last}", size)
    if span is None:
        assert first >= size or first > last
    else:
        assert span == Span(first, min(last, size - 1))
