from __future__ import annotations

import datetime
import ssl

import pytest

from autoscaler.kubernetes.certificates import RENEW_BEFORE, VALID, is_worn, make_certificates
from autoscaler.kubernetes.webhook_setup import context_of

NAMES = ["hook.space.svc", "hook.space.svc.cluster.local"]
NOW = datetime.datetime.now(datetime.UTC)


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_trusts_the_authority_connects(name: str) -> None:
    made = make_certificates(NAMES, NOW)
    client_context = ssl.create_default_context(cadata=made.authority.decode())
    assert handshake(context_of(made), client_context, name)


def test_a_client_that_trusts_another_authority_does_not() -> None:
    made, other = make_certificates(NAMES, NOW), make_certificates(NAMES, NOW)
    client_context = ssl.create_default_context(cadata=other.authority.decode())
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(context_of(made), client_context, NAMES[0])


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> bool:
    """A TLS handshake in memory; raises what the client objects to."""
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


def test_wears_out_before_it_ends() -> None:
    certificate = make_certificates(NAMES, NOW).certificate
    assert not is_worn(certificate, NAMES, NOW)
    assert not is_worn(certificate, NAMES, NOW + VALID - RENEW_BEFORE - datetime.timedelta(days=1))
    assert is_worn(certificate, NAMES, NOW + VALID - RENEW_BEFORE + datetime.timedelta(days=1))
    assert is_worn(certificate, [*NAMES, "hook.elsewhere.svc"], NOW)
    assert is_worn(b"no certificate", NAMES, NOW)
