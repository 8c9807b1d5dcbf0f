"""An issuer's keys: which are used, and when they are read again."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from gateway.authentication.issuers import (
    MAX_AGE_S,
    MAX_BYTES,
    MIN_REFRESH_INTERVAL_S,
    KeySet,
    read_document,
    read_key_set,
)
from gateway.errors import InvalidToken, NotReady
from tests.gateway.asynchronous import run_async
from tests.gateway.authentication.identity_provider import (
    Issuer,
    key_set,
    new_key,
    public_jwk,
    published,
)


class FakeLocation:
    """The location of the keys, with a clock that the test sets."""

    def __init__(self, *documents: bytes | Exception) -> None:
        self.documents = list(documents)
        self.reads = 0
        self.changes = 0
        self.now_s = 1000.0

    def read(self, _: str) -> bytes:
        self.reads += 1
        document = self.documents.pop(0) if len(self.documents) > 1 else self.documents[0]
        if isinstance(document, Exception):
            raise document
        return document

    def keys(self) -> KeySet:
        def changed() -> None:
            self.changes += 1

        return KeySet(
            "https://id.example.com/keys", changed, read=self.read, clock=lambda: self.now_s
        )


OLD, NEW = new_key(), new_key("RS256")
BEFORE = key_set(public_jwk(OLD, "old"))
AFTER = key_set(public_jwk(NEW, "new"))


@run_async
async def test_concurrent_requests_for_an_unknown_key_read_the_keys_once() -> None:
    location = FakeLocation(BEFORE, AFTER)
    keys = location.keys()
    await keys.key("old", "ES256")
    location.now_s += MIN_REFRESH_INTERVAL_S
    async with asyncio.TaskGroup() as asking:
        for _ in range(20):
            asking.create_task(keys.key("new", "RS256"))
    assert location.reads == 2
    with pytest.raises(InvalidToken):
        await keys.key("old", "ES256")
    assert (location.reads, location.changes) == (2, 2)


@run_async
async def test_many_unknown_keys_read_the_keys_once() -> None:
    location = FakeLocation(BEFORE)
    keys = location.keys()
    for number in range(50):
        with pytest.raises(InvalidToken):
            await keys.key(f"made-up-{number}", "ES256")
    await keys.key("old", "ES256")
    assert (location.reads, location.changes) == (1, 1)


@run_async
async def test_a_failed_reading_keeps_the_previous_keys() -> None:
    location = FakeLocation(BEFORE, ValueError("no keys"), OSError("away"))
    keys = location.keys()
    for _ in range(3):
        await keys.refresh_if_old()
        location.now_s += MAX_AGE_S
        await keys.key("old", "ES256")
    assert location.reads == 3


@run_async
async def test_no_token_is_invalid_before_the_keys_are_read() -> None:
    location = FakeLocation(OSError("away"), BEFORE)
    keys = location.keys()
    for _ in range(2):
        with pytest.raises(NotReady):
            await keys.key("old", "ES256")
    location.now_s += MIN_REFRESH_INTERVAL_S
    await keys.key("old", "ES256")
    assert location.reads == 2


@run_async
async def test_keys_are_read_again_after_their_maximum_age() -> None:
    location = FakeLocation(BEFORE, BEFORE, AFTER)
    keys = location.keys()
    await keys.refresh_if_old()
    location.now_s += MAX_AGE_S / 2
    await keys.refresh_if_old()
    assert location.reads == 1
    for _ in range(2):
        location.now_s += MAX_AGE_S
        await keys.refresh_if_old()
    assert (location.reads, location.changes) == (3, 2)


@pytest.mark.parametrize(
    ("entry", "algorithms"),
    [
        pytest.param(public_jwk(OLD, "k"), {"ES256"}, id="elliptic"),
        pytest.param(public_jwk(NEW, "k", alg="RS256"), {"RS256"}, id="rsa-for-one-algorithm"),
        pytest.param(public_jwk(NEW, "k", alg="HS256"), set(), id="rsa-as-a-shared-secret"),
        pytest.param(public_jwk(NEW, "k", use="enc"), set(), id="for-encryption"),
        pytest.param({"kty": "oct", "k": "c2VjcmV0", "kid": "k"}, set(), id="shared-secret"),
        pytest.param({"kty": "EC", "crv": "P-256", "x": "", "y": "", "kid": "k"}, set(), id="bad"),
        pytest.param({**public_jwk(OLD, None), "kid": 7}, set(), id="odd-name"),
        pytest.param("text", set(), id="no-object"),
    ],
)
def test_uses_only_public_keys_for_signatures(entry: Any, algorithms: set[str]) -> None:
    [found] = read_key_set(key_set(entry)).values() or [()]
    assert {each for _, usable in found for each in usable} == algorithms


def test_ignores_short_and_private_keys() -> None:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    private = {**public_jwk(NEW, "private"), "d": "AQAB"}
    assert read_key_set(key_set(public_jwk(short, "short"), private)) == {}


@pytest.mark.parametrize("document", [b"", b"[]", b'{"keys": 1}', b"null", b'{"key": []}'])
def test_rejects_a_document_that_is_not_a_key_set(document: bytes) -> None:
    with pytest.raises(ValueError, match="must be"):
        read_key_set(document)


def test_a_token_without_key_id_needs_a_single_key() -> None:
    async def ask(*entries: dict[str, Any]) -> None:
        await FakeLocation(key_set(*entries)).keys().key(None, "ES256")

    asyncio.run(ask(public_jwk(OLD, "a"), public_jwk(NEW, "b")))
    with pytest.raises(InvalidToken, match="must be named"):
        asyncio.run(ask(public_jwk(OLD, "a"), public_jwk(new_key(), "b")))


def test_reads_documents_of_bounded_size_from_urls_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "gateway.authentication.issuers.TIMEOUT_S", 120.0
    )  # the machine may be busy
    issuer = Issuer({"old": OLD})
    with published(issuer) as url:
        assert read_document(url) == issuer.document
    file = tmp_path / "keys"
    file.write_bytes(BEFORE)
    assert read_document(str(file)) == BEFORE
    file.write_bytes(b" " * (MAX_BYTES + 1))
    with pytest.raises(ValueError, match="at most"):
        read_document(str(file))
    with pytest.raises(FileNotFoundError):
        read_document(str(tmp_path / "absent"))
