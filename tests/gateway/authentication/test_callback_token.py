from pathlib import Path

import pytest

from common.pod_secret import PodSecret
from gateway.authentication.access import LEEWAY_S, is_callback, make_token
from registry.domain.model import ModelName

MODEL = ModelName("red", "wise")
OLD, NEW = "an-old-secret-of-pods", "a-new-secret-of-pods-"


def secret(folder: Path, *lines: str) -> PodSecret:
    file = folder / "-".join(lines)
    file.write_text("\n".join(lines))
    return PodSecret(str(file))


def test_a_token_is_for_its_model_until_its_time(tmp_path: Path) -> None:
    own = secret(tmp_path, OLD)
    token = make_token(own, MODEL, 1000.0)
    assert is_callback(own, token, MODEL, 1000.0 + LEEWAY_S)
    assert not is_callback(own, token, MODEL, 1001.0 + LEEWAY_S)
    assert not is_callback(own, token, ModelName("red", "other"), 1000.0)
    assert not is_callback(own, token, ModelName("blue", "wise"), 1000.0)


def test_tokens_hold_while_the_secret_is_replaced(tmp_path: Path) -> None:
    old, both, new = secret(tmp_path, OLD), secret(tmp_path, OLD, NEW), secret(tmp_path, NEW)
    for maker, reader in ((old, both), (both, old), (both, new), (new, both)):
        assert is_callback(reader, make_token(maker, MODEL, 1000.0), MODEL, 1000.0)
    assert not is_callback(new, make_token(old, MODEL, 1000.0), MODEL, 1000.0)


@pytest.mark.parametrize(
    "token",
    [
        None,
        b"",
        b"pilotlight-callback",
        b"pilotlight-callback.red.wise.2000.",
        b"pilotlight-callback.red.wise.2000.AAAA",
        b"pilotlight-callback.red.wise.x.AAAA",
        b"pilotlight-callback.red.wise.99999999999999999999.AAAA",
        b"a.b.c",
        b"." * 9,
        b"pilotlight-callback.red.wise.2000." + b"~" * 100_000,
    ],
)
def test_other_credentials_are_none(tmp_path: Path, token: bytes | None) -> None:
    assert not is_callback(secret(tmp_path, OLD), token, MODEL, 1000.0)


def test_without_a_secret_no_token_is_made_or_accepted(tmp_path: Path) -> None:
    assert make_token(PodSecret(), MODEL, 1000.0) == b""
    made = make_token(secret(tmp_path, OLD), MODEL, 1000.0)
    assert not is_callback(PodSecret(), made, MODEL, 1000.0)
