import datetime
import ssl
from dataclasses import replace
from pathlib import Path

import pytest

from common.certificates import VALIDITY, load_certificates, make_certificates, make_context
from controller.webhook_server import RENEW_BEFORE, authority_bundle, needs_renewal, read_folder

NAMES = ["hook.space.svc", "hook.space.svc.cluster.local"]
NOW = datetime.datetime.now(datetime.UTC)


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_trusts_the_authority_connects(name: str) -> None:
    made = make_certificates(NAMES, NOW)
    client_context = ssl.create_default_context(cadata=made.authority.decode())
    assert handshake(make_context(made), client_context, name)


def test_a_client_that_trusts_another_authority_does_not() -> None:
    made, other = make_certificates(NAMES, NOW), make_certificates(NAMES, NOW)
    client_context = ssl.create_default_context(cadata=other.authority.decode())
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(make_context(made), client_context, NAMES[0])


def test_new_connections_get_the_renewed_certificate() -> None:
    before, after = make_certificates(NAMES, NOW), make_certificates(NAMES, NOW)
    server = make_context(before)
    load_certificates(server, after)
    client_context = ssl.create_default_context(cadata=after.authority.decode())
    assert handshake(server, client_context, NAMES[0])


def test_the_bundle_trusts_both_authorities_during_a_renewal() -> None:
    oldest, before, after = (make_certificates(NAMES, NOW) for _ in range(3))
    bundle = authority_bundle(after.authority, authority_bundle(before.authority, oldest.authority))
    client_context = ssl.create_default_context(cadata=bundle.decode())
    for shown in (before, after):
        assert handshake(make_context(shown), client_context, NAMES[0])
    assert client_context.cert_store_stats()["x509"] == 2
    assert authority_bundle(after.authority, b"no certificate") == after.authority


def test_a_mismatched_key_is_rejected_and_the_old_pair_stays() -> None:
    made, other = make_certificates(NAMES, NOW), make_certificates(NAMES, NOW)
    server = make_context(made)
    with pytest.raises(ssl.SSLError):
        load_certificates(server, replace(made, key=other.key))
    assert handshake(server, ssl.create_default_context(cadata=made.authority.decode()), NAMES[0])


def test_reads_the_certificates_of_a_mounted_secret(tmp_path: Path) -> None:
    made = make_certificates(NAMES, NOW)
    (tmp_path / "tls.crt").write_bytes(made.certificate)
    (tmp_path / "tls.key").write_bytes(made.key)
    assert read_folder(str(tmp_path)) == replace(made, authority=b"")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bool:
    """A TLS handshake in memory; raises the client's error."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done: set[int] = set()
    for _ in range(20):
        for index, end in enumerate(ends):
            if index in done:
                continue
            try:
                end.do_handshake()
                done.add(index)
            except ssl.SSLWantReadError:
                pass
        if len(done) == len(ends):
            return True
    return False


def test_needs_renewal_before_expiry() -> None:
    certificate = make_certificates(NAMES, NOW).certificate
    assert not needs_renewal(certificate, NAMES, NOW)
    assert not needs_renewal(
        certificate, NAMES, NOW + VALIDITY - RENEW_BEFORE - datetime.timedelta(days=1)
    )
    assert needs_renewal(
        certificate, NAMES, NOW + VALIDITY - RENEW_BEFORE + datetime.timedelta(days=1)
    )
    assert needs_renewal(certificate, [*NAMES, "hook.elsewhere.svc"], NOW)
    assert needs_renewal(b"no certificate", NAMES, NOW)
