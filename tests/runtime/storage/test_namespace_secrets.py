"""Storage credentials of a model's own namespace, from an API server over TLS."""

import base64
import datetime
import json
import ssl
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from common.certificates import make_certificates
from registry.domain.model import ModelName, ModelSpec
from registry.domain.tenant_rules import parse_rules
from runtime.errors import StorageFailed
from runtime.storage import web_identity
from runtime.storage.access import NamespaceSecrets, StorageAccess, storage_access
from runtime.storage.s3 import S3Storage, open_s3
from runtime.storage.s3_connections import options_without_pool
from runtime.storage.web_identity import ROLE, RoleKeys
from tests import servers
from tests.http_server import Handler, http_server

TOKEN = "the-pods-token"
POOL = {"AWS_ACCESS_KEY_ID": "AKIAPOOL", "AWS_SECRET_ACCESS_KEY": "pool-secret",
        "AWS_ENDPOINT_URL": "http://minio.pool:9000", "PILOTLIGHT_REDIS_URL": "redis://:pw@redis",
        "HF_TOKEN": "hf_pool", "PATH": "/usr/bin"}  # fmt: skip


def secret(data: Mapping[str, str], **annotations: str) -> dict[str, Any]:
    encoded = {key: base64.b64encode(text.encode()).decode() for key, text in data.items()}
    ours = {f"serving.kserve.io/s3-{key}": text for key, text in annotations.items()}
    return {"metadata": {"annotations": ours}, "data": encoded}


def account(*secrets: str, **annotations: str) -> dict[str, Any]:
    return {
        "metadata": {"annotations": annotations},
        "secrets": [{"name": name} for name in secrets],
    }


ROLE_ARN = "arn:aws:iam::123456789012:role/team"
S3_KEYS = {"awsAccessKeyID": "AKIATENANT", "awsSecretAccessKey": "tenant-secret"}
OBJECTS: dict[str, dict[str, Any]] = {
    "serviceaccounts/reader": account("s3", "hub", "google"),
    "serviceaccounts/bare": account(),
    "serviceaccounts/again": account(*["plain"] * 3000),
    "serviceaccounts/many": account(*map(str, range(33))),
    "serviceaccounts/role": account(**{"eks.amazonaws.com/role-arn": ROLE_ARN}),
    "serviceaccounts/unbound": account(**{"eks.amazonaws.com/role-arn": ROLE_ARN}),
    "serviceaccounts/both": account("plain", **{"eks.amazonaws.com/role-arn": ROLE_ARN}),
    "secrets/s3": secret(S3_KEYS, endpoint="s3.tenant.example", usehttps="1", region="eu-west-1"),
    "secrets/plain": secret(S3_KEYS),
    "secrets/bundle": secret({**S3_KEYS, "AWS_CA_BUNDLE": "/etc/shadow"}, cabundle="/etc/shadow"),
    "secrets/hub": secret({"HF_TOKEN": "hf_tenant", "LD_PRELOAD": "/tmp/x.so", "PATH": "/tmp"}),
    "secrets/google": secret({"gcloud-application-credentials.json": '{"type": "x"}'}),
    "secrets/storage-config": secret(
        {"team": json.dumps({"access_key_id": "AKIACONFIG", "secret_access_key": "c",
                             "endpoint_url": "https://c.example", "ca_bundle": "/etc/shadow"}),
         "odd": "[]"}
    ),
}  # fmt: skip


STS_ANSWER = b"""<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>ASIAKEY</AccessKeyId><SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>
<Expiration>2999-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""
READ: list[str] = []
"""Objects that were asked for."""
TOKENS: list[dict[str, Any]] = []
"""Specs of the requests for tokens."""


class Api(Handler):
    """Answers for the namespace `team`; a token of no namespace reads nothing else."""

    def do_GET(self) -> None:
        prefix = "/api/v1/namespaces/team/"
        is_allowed = self.headers["authorization"] == f"Bearer {TOKEN}" and self.path.startswith(
            prefix
        )
        READ.append(self.path.removeprefix(prefix))
        found = OBJECTS.get(READ[-1]) if is_allowed else None
        status = 200 if found else 404 if is_allowed else 403
        self.answer(status, json.dumps(found or {}).encode())

    def do_POST(self) -> None:
        """Tokens, of the account `role` only."""
        spec = json.loads(self.body())["spec"]
        is_allowed = self.path == "/api/v1/namespaces/team/serviceaccounts/role/token"
        if is_allowed:
            TOKENS.append(spec)
        made = {"status": {"token": f"a.token.{len(TOKENS)}"}}
        self.answer(201 if is_allowed else 403, json.dumps(made).encode())


@pytest.fixture(scope="module")
def secrets(
    tmp_path_factory: pytest.TempPathFactory, s3: servers.S3Server
) -> Iterator[NamespaceSecrets]:
    folder = tmp_path_factory.mktemp("token")
    made = make_certificates(["localhost"], datetime.datetime.now(datetime.UTC))
    (folder / "ca.crt").write_bytes(made.authority)
    (folder / "token").write_text(TOKEN + "\n")
    (folder / "pair.pem").write_bytes(made.certificate + made.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "pair.pem")
    with http_server(Api, tls=context) as address:
        sts = {"AWS_ENDPOINT_URL_STS": s3.url}
        yield NamespaceSecrets("localhost", int(address.rpartition(":")[2]), folder, sts)


def model(credentials: str, uri: str = "s3://bucket/m") -> ModelSpec:
    return ModelSpec(ModelName("team", "m"), uri, credentials=credentials)


def test_a_service_accounts_secrets_replace_the_pools_environment(
    secrets: NamespaceSecrets,
) -> None:
    access = storage_access(model("serviceaccount/reader"), parse_rules(), POOL, secrets)
    assert access.environment == {
        "PATH": "/usr/bin",
        "AWS_ACCESS_KEY_ID": "AKIATENANT",
        "AWS_SECRET_ACCESS_KEY": "tenant-secret",
        "S3_ENDPOINT": "s3.tenant.example",
        "S3_USE_HTTPS": "1",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "HF_TOKEN": "hf_tenant",
    }
    assert access.google == '{"type": "x"}'
    assert access.hosts is not None
    assert "s3.tenant.example" not in access.hosts
    options = options_without_pool(access.environment, access.hosts)
    assert options.endpoint_url == "https://s3.tenant.example"
    assert options.access_key_id == "AKIATENANT"
    for shown in (repr(access), repr(options)):
        assert "tenant-secret" not in shown
        assert "hf_tenant" not in shown


def test_keys_without_an_endpoint_are_for_the_pools_store(secrets: NamespaceSecrets) -> None:
    access = storage_access(model("secret/plain"), parse_rules(), POOL, secrets)
    assert access.environment["AWS_ENDPOINT_URL"] == "http://minio.pool:9000"
    assert access.hosts is not None
    assert "minio.pool" in access.hosts


def test_a_key_of_storage_config_is_read(secrets: NamespaceSecrets) -> None:
    spec = model("storage-config/storage-config/team")
    access = storage_access(spec, parse_rules(), POOL, secrets)
    options = options_without_pool(access.environment, frozenset())
    assert (options.endpoint_url, options.access_key_id) == ("https://c.example", "AKIACONFIG")
    assert options.verify is True  # no file of the pod as certificates


def test_a_secret_names_no_files_of_the_pod(secrets: NamespaceSecrets) -> None:
    access = storage_access(model("secret/bundle"), parse_rules(), POOL, secrets)
    assert "/etc/shadow" not in access.environment.values()


def test_a_model_without_keys_is_read_anonymously_never_by_boto3s_own_chain() -> None:
    access = storage_access(model(""), parse_rules(), POOL, None)
    options = options_without_pool(access.environment, access.hosts or frozenset())
    assert options.is_anonymous
    assert options.access_key_id is None


@pytest.mark.parametrize(
    ("credentials", "message"),
    [
        pytest.param("serviceaccount/bare", "names no Secret", id="no-secret"),
        pytest.param("serviceaccount/bare", "annotation eks.amazonaws.com/role-arn", id="no-role"),
        pytest.param(
            "serviceaccount/unbound",
            "may not create serviceaccounts/token 'unbound'.*--verb=create",
            id="no-token",
        ),
        pytest.param("serviceaccount/missing", "no object 'missing'", id="no-account"),
        pytest.param("serviceaccount/many", "at most 32 Secrets .* was 33", id="many-secrets"),
        pytest.param("secret/missing", "no object 'missing'", id="no-such-secret"),
        pytest.param("storage-config/storage-config/other", "no key 'other'", id="no-key"),
        pytest.param("storage-config/storage-config/odd", "must be a JSON object", id="no-json"),
    ],
)
def test_missing_credentials_are_named(
    secrets: NamespaceSecrets, credentials: str, message: str
) -> None:
    with pytest.raises(StorageFailed, match=message):
        storage_access(model(credentials), parse_rules(), POOL, secrets)


def test_another_namespaces_secrets_are_not_read(secrets: NamespaceSecrets) -> None:
    spec = replace(model("secret/s3"), name=ModelName("other", "m"))
    allow = "kubectl -n other create role .* --resource=secrets --resource-name=s3 && .*rolebinding"
    with pytest.raises(StorageFailed, match=allow):
        storage_access(spec, parse_rules(), POOL, secrets)


def test_a_pod_without_a_token_says_so() -> None:
    with pytest.raises(StorageFailed, match="automountServiceAccountToken"):
        storage_access(model("secret/s3"), parse_rules(), POOL, None)


def test_one_machine_ignores_the_names_of_a_clusters_secrets() -> None:
    access = storage_access(model("serviceaccount/reader"), None, POOL, None)
    assert access.is_pool


def test_credentials_are_a_part_of_the_generation() -> None:
    specs = [model(""), model("serviceaccount/a"), model("serviceaccount/b")]
    assert len({spec.generation for spec in specs}) == len(specs)


def test_the_role_of_a_service_account_reads_s3(
    secrets: NamespaceSecrets, s3: servers.S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_text("{}")
    s3.put_folder(tmp_path / "m", "s3://of-the-team/m")
    spec, pool = model("serviceaccount/role", "s3://of-the-team/m"), {"AWS_ENDPOINT_URL": s3.url}

    def access() -> StorageAccess:
        return storage_access(spec, parse_rules(), pool, secrets)

    TOKENS.clear()
    found = access()
    assert found.environment["AWS_ACCESS_KEY_ID"].startswith("ASIA")
    assert TOKENS == [{"audiences": ["sts.amazonaws.com"], "expirationSeconds": 600}]
    options = options_without_pool(found.environment, found.hosts or frozenset())
    assert options.session_token
    assert "config.json" in [
        each.path for each in S3Storage("s3://of-the-team/m", open_s3(options)).list_files()
    ]
    assert access().environment == found.environment  # kept
    assert len(TOKENS) == 1
    monkeypatch.setattr(web_identity, "RENEW_BEFORE_S", web_identity.KEYS_TTL_S + 60.0)
    assert access().environment != found.environment
    assert len(TOKENS) == 2


def test_a_secret_that_an_account_lists_again_is_read_once(secrets: NamespaceSecrets) -> None:
    READ.clear()
    storage_access(model("serviceaccount/again"), parse_rules(), POOL, secrets)
    assert READ == ["serviceaccounts/again", "secrets/plain"]


def test_a_slow_token_service_of_one_account_holds_up_no_other() -> None:
    class Sts(Handler):
        def do_POST(self) -> None:
            is_slow = b"slow" in self.body()
            assert not is_slow or go_on.wait(30)
            self.answer(200, STS_ANSWER)

    go_on = threading.Event()
    with http_server(Sts) as url, ThreadPoolExecutor() as threads:
        keys = RoleKeys({"AWS_ENDPOINT_URL_STS": f"http://{url}"})

        def assume(name: str) -> dict[str, str]:
            return keys.of(f"team/{name}", {ROLE: ROLE_ARN}, lambda _: f"token.of.{name}")

        slow = threads.submit(assume, "slow")
        assert assume("quick")["AWS_ACCESS_KEY_ID"] == "ASIAKEY"
        assert not slow.done()
        go_on.set()
        assert slow.result(30) == assume("slow")


def test_keys_of_a_secret_come_before_the_role(secrets: NamespaceSecrets) -> None:
    access = storage_access(model("serviceaccount/both"), parse_rules(), POOL, secrets)
    assert access.environment["AWS_ACCESS_KEY_ID"] == "AKIATENANT"


def test_a_role_reads_s3_only(secrets: NamespaceSecrets) -> None:
    spec = model("serviceaccount/role", "hf://team/m")
    with pytest.raises(StorageFailed, match="names no Secret"):
        storage_access(spec, parse_rules(), POOL, secrets)


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:{free_port}", "no url"])
def test_a_role_that_cannot_be_assumed_says_what_it_must_trust(endpoint: str) -> None:
    url = endpoint.format(free_port=servers.free_port())
    keys = RoleKeys({"AWS_ENDPOINT_URL_STS": url})
    trust = "system:serviceaccount:team:role with audience sts.amazonaws.com"
    with pytest.raises(StorageFailed, match=trust):
        keys.of("team/role", {ROLE: ROLE_ARN}, lambda audience: f"token.for.{audience}")
