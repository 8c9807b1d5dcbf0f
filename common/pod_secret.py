"""The secret that gateway, autoscaler and pods share, and which every request to a pod carries.

A file holds one secret per line: a process sends all of them and accepts each. So a rotation loses
no request: first add the new line, and remove the old one when all processes have read the file.
"""

import asyncio
import base64
import hmac
import logging
import os
import secrets
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

logger = logging.getLogger(__name__)

HEADER: Final = "x-pilotlight-secret"
POLL_INTERVAL_S: Final = 0.5
MIN_CHARACTERS: Final = 16
MAX_CHARACTERS: Final = 256
MAX_SECRETS: Final = 4


def parse_secret_file(text: str) -> str:
    """A setting that names a file of secrets, or none. Raises ValueError."""
    try:
        PodSecret(text)
    except OSError as error:
        raise ValueError(f"must be a readable file of secrets: {error}") from None
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None
    return text


def make_secret() -> str:
    """A new secret: 256 random bits as 43 characters."""
    return secrets.token_urlsafe(32)


def parse_secrets(text: str) -> tuple[str, ...]:
    """The secrets of a file, one per line. Raises ValueError; its message quotes none of them."""
    found = tuple(dict.fromkeys(line.strip() for line in text.splitlines() if line.strip()))
    if not 1 <= len(found) <= MAX_SECRETS:
        raise ValueError(f"must have 1 to {MAX_SECRETS} lines with a secret each, has {len(found)}")
    for number, secret in enumerate(found, start=1):
        is_printable = secret.isascii() and secret.isprintable() and not {" ", ","} & set(secret)
        if not is_printable or not MIN_CHARACTERS <= len(secret) <= MAX_CHARACTERS:
            raise ValueError(
                f"secret {number} must be {MIN_CHARACTERS} to {MAX_CHARACTERS} printable ASCII"
                f" characters without space and comma, has {len(secret)} characters"
            )
    return found


def _signature(secret: bytes, message: bytes) -> bytes:
    digest = hmac.digest(secret, message, "sha256")
    return base64.urlsafe_b64encode(digest).rstrip(b"=")


class PodSecret:
    """The secrets in use; without a file none is sent, and every request is accepted."""

    def __init__(self, file: str = "") -> None:
        """Read the file. Raises OSError, ValueError."""
        self._file = Path(file) if file else None
        self._stamp: tuple[int, ...] = ()
        self._accepted: tuple[bytes, ...] = ()
        self.header_value = ""
        """The value of `HEADER` in a request to a pod; empty: no header."""
        self.header_line = b""
        """`HEADER` as a line of an HTTP/1.1 head, led by its line break."""
        self._read()

    @property
    def is_required(self) -> bool:
        return self._file is not None

    @property
    def headers(self) -> dict[str, str]:
        return {HEADER: self.header_value} if self.header_value else {}

    def accepts(self, value: bytes | None) -> bool:
        """Whether one of the secrets in a header's value is in use; compares in constant time."""
        if self._file is None:
            return True
        if value is None or len(value) > MAX_SECRETS * (MAX_CHARACTERS + 1):
            return False
        return any(
            hmac.compare_digest(given, accepted)
            for given in value.split(b",", MAX_SECRETS)
            for accepted in self._accepted
        )

    def sign(self, message: bytes) -> tuple[bytes, ...]:
        """A signature by each secret, as 43 characters of base64url; empty without a file."""
        return tuple(_signature(secret, message) for secret in self._accepted)

    def has_signed(self, message: bytes, signatures: Iterable[bytes]) -> bool:
        """Whether one of the signatures is by a secret in use; False without a file."""
        own = self.sign(message)
        return any(
            hmac.compare_digest(given, each)
            for given in islice(signatures, MAX_SECRETS)
            for each in own
        )

    def reload(self) -> None:
        """Read the file again if it has changed; an unusable one leaves the secrets unchanged."""
        try:
            if self._file is not None and file_stamp(self._file) != self._stamp:
                self._read()
                logger.info("pod secret read again", extra={"secrets": len(self._accepted)})
        except (OSError, ValueError) as error:
            logger.warning("the pod secret cannot be read again: %s", error)

    async def reload_periodically(self) -> None:
        """Until cancelled; returns at once without a file."""
        while self._file is not None:
            await asyncio.sleep(POLL_INTERVAL_S)
            self.reload()

    def _read(self) -> None:
        if self._file is None:
            return
        stamp = file_stamp(self._file)
        found = parse_secrets(self._file.read_text("ascii", "replace"))
        self._stamp = stamp
        self._accepted = tuple(secret.encode() for secret in found)
        self.header_value = ",".join(found)
        self.header_line = f"\r\n{HEADER}: {self.header_value}".encode()


def file_stamp(*files: Path) -> tuple[int, ...]:
    """Changes with the files' contents, also where a mounted Secret replaces a link.

    Raises OSError.
    """
    found = [os.stat(file) for file in files]
    return tuple(n for each in found for n in (each.st_ino, each.st_mtime_ns, each.st_size))
