"""The secret of gateway, autoscaler and pods: its file, its comparison, its rotation."""

from itertools import pairwise, product
from pathlib import Path

import pytest

from common.pod_secret import MAX_SECRETS, PodSecret, make_secret, parse_secrets

OLD, NEW = "old-secret-of-pods", "new-secret-of-pods"


def written(file: Path, *secrets: str) -> PodSecret:
    file.write_text("\n".join(secrets) + "\n")
    return PodSecret(str(file))


def test_without_a_file_nothing_is_sent_and_everything_accepted() -> None:
    secret = PodSecret()
    assert not secret.is_required
    assert secret.header_line == b""
    assert secret.headers == {}
    assert secret.accepts(None)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(None, id="none"),
        pytest.param(b"", id="empty"),
        pytest.param(OLD[:-1].encode(), id="shorter"),
        pytest.param(OLD.upper().encode(), id="other case"),
        pytest.param(f" {OLD}".encode(), id="blank"),
        pytest.param(b",".join([b"x"] * 5000), id="many"),
        pytest.param(b"\xff" * 20, id="not ascii"),
        pytest.param(b",,,,,,,," + OLD.encode(), id="behind too many"),
    ],
)
def test_other_values_are_refused(tmp_path: Path, value: bytes | None) -> None:
    assert not written(tmp_path / "secret", OLD).accepts(value)


def test_no_two_processes_disagree_in_any_order_of_a_rotation(tmp_path: Path) -> None:
    steps = [
        written(tmp_path / "old", OLD),
        written(tmp_path / "both", OLD, NEW),
        written(tmp_path / "new", NEW),
    ]
    for pair in pairwise(steps):
        for sender, receiver in product(pair, pair):
            assert receiver.accepts(sender.header_value.encode())
    assert not steps[2].accepts(steps[0].header_value.encode())


def test_a_changed_file_is_read_again_and_an_unusable_one_is_not(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    secret = written(file, OLD)
    for text in ("short", "", "\n".join(f"{OLD}{n}" for n in range(MAX_SECRETS + 1))):
        file.write_text(text)
        secret.reload()
        assert secret.accepts(OLD.encode())
    file.unlink()
    secret.reload()
    assert secret.accepts(OLD.encode())
    file.write_text(NEW)
    secret.reload()
    assert secret.accepts(NEW.encode())
    assert not secret.accepts(OLD.encode())


@pytest.mark.parametrize(
    "text",
    ["", "short", "a secret with blanks", "with,comma,and,more", "ümlaut-in-a-secret", "x" * 300],
)
def test_mistakes_in_the_file_are_named_without_its_content(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(must have|secret 1 must be)") as error:
        parse_secrets(text)
    assert not text or text not in str(error.value)


def test_made_secrets_are_valid_and_differ() -> None:
    made = {make_secret() for _ in range(10)}
    assert len(made) == 10
    assert all(parse_secrets(secret) == (secret,) for secret in made)
