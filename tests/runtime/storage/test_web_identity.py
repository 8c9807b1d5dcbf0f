"""Credentials of the pool's service account, as IRSA gives them: a token instead of keys."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import servers


@pytest.mark.slow
@pytest.mark.parametrize("is_issuer_reachable", [True, False])
def test_a_pod_reads_s3_with_the_role_of_its_service_account(
    s3: servers.S3Server, models: Path, tmp_path: Path, *, is_issuer_reachable: bool
) -> None:
    """Without the token service, nothing is read: there are no other credentials."""
    uri = "s3://web-identity/m"
    s3.put_folder(models / "tiny-bert", uri)
    token = tmp_path / "token"
    token.write_text("a.service.account")
    issuer = s3.url if is_issuer_reachable else f"http://127.0.0.1:{servers.free_port()}"
    given = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment = {
        **given,
        "AWS_ENDPOINT_URL": s3.url,
        "AWS_ENDPOINT_URL_STS": issuer,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/models",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
        "AWS_MAX_ATTEMPTS": "1",
    }
    arguments = ["-m", "tests.runtime.storage.fetch_in_process", str(tmp_path / "cache"), uri]
    fetched = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    assert fetched.returncode == (0 if is_issuer_reachable else 3), fetched.stdout + fetched.stderr
    found = [each.name for each in (tmp_path / "cache").rglob("model.safetensors")]
    assert bool(found) is is_issuer_reachable
