"""`storage: {key, path}` without a bucket: that of the Secret's key, in a real object store."""

import json
from pathlib import Path

import pytest

from runtime.errors import StorageFailed
from runtime.storage.storages import StorageOptions, Storages
from tests import servers
from tests.registry.inference_service.test_fields import declared, read


def test_the_keys_bucket_is_read(s3: servers.S3Server, tmp_path: Path) -> None:
    client = s3.client()
    client.create_bucket(Bucket="of-the-secret")
    client.put_object(Bucket="of-the-secret", Key="iris/model.skops", Body=b"skops")
    client.close()
    document = declared()
    document["spec"]["predictor"]["model"] = {
        "modelFormat": {"name": "sklearn"},
        "storage": {"key": "minio", "path": "iris"},
    }
    spec = read(document)
    secret = {"type": "s3", "endpoint_url": s3.url, "bucket": "of-the-secret"}
    secret |= {"access_key_id": "test", "secret_access_key": "test", "region": "us-east-1"}
    storages = Storages(StorageOptions(environment={}, secret_folder=str(tmp_path)))
    (tmp_path / "minio").write_text(json.dumps(secret))
    files = storages.open(spec, tmp_path / "staging").list_files()
    assert [each.path for each in files] == ["model.skops"]
    del secret["bucket"]
    (tmp_path / "minio").write_text(json.dumps(secret))
    with pytest.raises(StorageFailed, match="key 'minio' of storage-config names no bucket of S3"):
        storages.open(spec, tmp_path / "staging")
    storages.close()
