"""KServe's conventions for S3: storage-config, a service account's environment; what errors say."""

import json
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
import yaml
from botocore.exceptions import ClientError, NoCredentialsError

from runtime.errors import StorageFailed
from runtime.storage.s3 import open_s3, s3_problem
from runtime.storage.s3_connections import S3Options, options_for
from tests.http_server import Handler, http_server
from tests.rendered import MANIFESTS

SECRET = {
    "type": "s3",
    "access_key_id": "key",
    "secret_access_key": "word",
    "endpoint_url": "http://minio:9000",
    "region": "eu-west-1",
}
OF_SECRET = S3Options(
    endpoint_url="http://minio:9000",
    access_key_id="key",
    secret_access_key="word",
    region="eu-west-1",
)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        pytest.param({}, S3Options(), id="boto3-alone"),
        pytest.param(
            {"AWS_ENDPOINT_URL": "http://x:1", "S3_ENDPOINT": "y"},
            S3Options(endpoint_url="http://x:1"),
            id="endpoint-url",
        ),
        pytest.param(
            {"S3_ENDPOINT": "minio:9000", "S3_USE_HTTPS": "0"},
            S3Options(endpoint_url="http://minio:9000"),
            id="plain-http",
        ),
        pytest.param(
            {"S3_ENDPOINT": "minio:9000"}, S3Options(endpoint_url="https://minio:9000"), id="https"
        ),
        pytest.param({"S3_VERIFY_SSL": "0"}, S3Options(verify=False), id="any-certificate"),
        pytest.param({"S3_VERIFY_SSL": "false"}, S3Options(verify=False), id="verify-false"),
        pytest.param({"S3_VERIFY_SSL": "1"}, S3Options(), id="verify"),
        pytest.param(
            {"awsAnonymousCredential": "true"}, S3Options(is_anonymous=True), id="anonymous"
        ),
        pytest.param(
            {"S3_USER_VIRTUAL_BUCKET": "true"}, S3Options(is_virtual_hosted=True), id="virtual"
        ),
        pytest.param(
            {"S3_USE_ACCELERATE": "true"}, S3Options(is_accelerated=True), id="accelerated"
        ),
        pytest.param(
            {"AWS_ENDPOINT_URL": "https://s3.amazonaws.com", "AWS_DEFAULT_REGION": "eu-west-1"},
            S3Options(
                endpoint_url="https://s3.amazonaws.com", region="eu-west-1", is_virtual_hosted=True
            ),
            id="global-endpoint-of-another-region",
        ),
        pytest.param({"STORAGE_CONFIG": json.dumps(SECRET)}, OF_SECRET, id="storage-config"),
        pytest.param(
            {
                "STORAGE_CONFIG": json.dumps(SECRET | {"endpoint_url": "http://old"}),
                "STORAGE_OVERRIDE_CONFIG": '{"endpoint_url": "http://minio:9000"}',
                "AWS_SESSION_TOKEN": "of another account",
            },
            OF_SECRET,
            id="override",
        ),
        pytest.param(
            {"STORAGE_CONFIG": '{"type": "s3", "verify_ssl": false, "anonymous": "True"}'},
            S3Options(verify=False, is_anonymous=True),
            id="strings-and-booleans",
        ),
        pytest.param({"STORAGE_CONFIG": '{"type": "hdfs"}'}, S3Options(), id="not-s3"),
    ],
)
def test_reads_kserves_environment(environment: Mapping[str, str], expected: S3Options) -> None:
    assert options_for("models", environment, "") == expected


def test_mounted_secret_is_chosen_by_bucket_then_default_key(tmp_path: Path) -> None:
    other = SECRET | {"bucket": "special", "access_key_id": "special-key"}
    (tmp_path / "default_s3").write_text(json.dumps(SECRET))
    (tmp_path / "team-b").write_text(json.dumps(other))
    (tmp_path / "..data").mkdir()
    assert options_for("models", {}, str(tmp_path)) == OF_SECRET
    assert options_for("special", {}, str(tmp_path)).access_key_id == "special-key"


def test_certificate_bundle_must_exist(tmp_path: Path) -> None:
    bundle = tmp_path / "cabundle.crt"
    environment = {
        "CA_BUNDLE_CONFIGMAP_NAME": "bundle",
        "CA_BUNDLE_VOLUME_MOUNT_POINT": str(tmp_path),
    }
    with pytest.raises(StorageFailed, match=r"no file .*cabundle\.crt"):
        options_for("models", environment, "")
    bundle.write_text("")
    assert options_for("models", environment, "").verify == str(bundle)
    assert options_for("models", environment | {"S3_VERIFY_SSL": "0"}, "").verify is False


@pytest.mark.parametrize("text", ["{", "[]", '"s3"'])
def test_config_must_be_a_json_object(text: str) -> None:
    with pytest.raises(StorageFailed, match="STORAGE_CONFIG must be a JSON object"):
        options_for("models", {"STORAGE_CONFIG": text}, "")


def test_repr_hides_secrets() -> None:
    assert "word" not in repr(OF_SECRET)


def test_anonymous_access_signs_nothing() -> None:
    access = open_s3(S3Options(endpoint_url="http://minio:9000", is_anonymous=True))
    url = access.client.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "k"})
    assert url == "http://minio:9000/b/k"


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        pytest.param("InvalidAccessKeyId", "does not accept the keys", id="unknown key"),
        pytest.param("SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY", id="wrong secret"),
        pytest.param("AccessDenied", "s3:GetObject", id="denied"),
        pytest.param("403", "s3:ListBucket", id="denied without a body"),
        pytest.param("NoSuchBucket", "bucket's name", id="no bucket"),
    ],
)
def test_refusals_say_what_to_set(code: str, hint: str) -> None:
    options = S3Options(
        "http://store:9000", access_key_id="AKIA", secret_access_key="hidden", region="us-east-1"
    )
    error = ClientError({"Error": {"Code": code, "Message": "no"}}, "ListObjectsV2")
    told = s3_problem(error, open_s3(options).client)
    assert told.startswith(f"at http://store:9000: An error occurred ({code})")
    assert hint in told
    assert "hidden" not in told


def test_a_refused_anonymous_read_names_the_grant_of_the_pool() -> None:
    error = ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "ListObjectsV2")
    told = s3_problem(error, open_s3(S3Options("http://store:9000", is_anonymous=True)).client)
    assert "read without credentials" in told
    assert "the tenant's ConfigMap" in told
    assert "pools[].storagePrefixes" in told


class _NodeRole(Handler):
    """The node's metadata service, as far as the role's keys."""

    calls: ClassVar[list[str]] = []

    def do_PUT(self) -> None:
        self.calls.append(self.path)
        self.answer(200, b"token", {"x-aws-ec2-metadata-token-ttl-seconds": "60"})

    def do_GET(self) -> None:
        self.calls.append(self.path)
        if self.path.endswith("/security-credentials/"):
            return self.answer(200, b"node")
        keys = {"Code": "Success", "AccessKeyId": "NODE", "SecretAccessKey": "s", "Token": "t"}
        expires = {"Expiration": "2099-01-01T00:00:00Z", "LastUpdated": "2020-01-01T00:00:00Z"}
        return self.answer(200, json.dumps(keys | expires).encode())


@pytest.mark.parametrize("is_pool", [True, False], ids=["a pool's pod", "elsewhere"])
def test_the_role_of_the_node_is_not_taken_in_a_pool(
    is_pool: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pool = yaml.safe_load((MANIFESTS / "base" / "pool" / "pool.yaml").read_text())
    variables = pool["spec"]["predictor"]["containers"][0]["env"]
    given = {e["name"]: e["value"] for e in variables if e["name"].startswith("AWS_")}
    for name in [each for each in os.environ if each.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name, text in given.items() if is_pool else ():
        monkeypatch.setenv(name, text)
    _NodeRole.calls.clear()
    with http_server(_NodeRole) as address:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{address}")
        client = open_s3(S3Options("http://store:9000", region="us-east-1")).client
        sign = partial(client.generate_presigned_url, "get_object", {"Bucket": "b", "Key": "k"})
        if is_pool:
            with pytest.raises(NoCredentialsError):
                sign()
        else:
            assert "NODE" in sign()
    assert (_NodeRole.calls == []) is is_pool
