"""TLS between the platform's own parts: gateways, pods, autoscaler, schedulers of workflows.

All parts use one folder, as a Secret of cert-manager's mounts it: `tls.crt`, `tls.key`, `ca.crt`.
Pods are reached by their addresses, which no certificate names, so every certificate names
`PART_NAME` instead, and clients check for it. Who calls is shown by the pods' secret
(`common.pod_secret`), which TLS hides from the network: probes of the kubelet have no
certificate.
"""

import asyncio
import logging
import ssl
from pathlib import Path
from typing import Any, Final

from common.pod_secret import file_stamp

logger = logging.getLogger(__name__)

TLS_DIR_HELP: Final = (
    "folder with tls.crt, tls.key and ca.crt, for TLS between all parts; read again when they"
    " change; empty: plain HTTP"
)

PART_NAME: Final = "pilotlight.internal"
"""The name that the certificate of every part has; `.internal` is reserved for private use."""
HANDSHAKE_TIMEOUT_S: Final = 10.0
POLL_INTERVAL_S: Final = 5.0
_FILES: Final = ("tls.crt", "tls.key", "ca.crt")


def parse_tls_dir(text: str) -> str:
    """A setting that names a folder with the three files, or none. Raises ValueError."""
    try:
        PartTls(text)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(
            f"must be a folder with {', '.join(_FILES)} in PEM, a certificate for"
            f" {PART_NAME!r} and its authority: {error}"
        ) from None
    return text


class PartTls:
    """The certificates in use; without a folder all connections are plain."""

    def __init__(self, folder: str = "") -> None:
        """Read the files. Raises OSError, ssl.SSLError."""
        self._folder = Path(folder) if folder else None
        self._stamp: tuple[int, ...] = ()
        self.server: ssl.SSLContext | None = None
        """For listening sockets; None: plain."""
        self.client: ssl.SSLContext | None = None
        """For connections to other parts; None: plain."""
        self.key_and_chain = (b"", b"")
        """In PEM, for servers that take no SSLContext."""
        if self._folder is not None:
            self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.server.minimum_version = ssl.TLSVersion.TLSv1_2
            self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self.client.minimum_version = ssl.TLSVersion.TLSv1_2
            self._read(self._folder)

    @property
    def connect_options(self) -> dict[str, Any]:
        """Arguments of asyncio's `create_connection`."""
        if self.client is None:
            return {}
        return {"ssl": self.client, "server_hostname": PART_NAME}

    def reload(self) -> None:
        """Read changed files again, for new connections; unusable ones leave all as it is."""
        try:
            if self._folder is not None and _stamp(self._folder) != self._stamp:
                self._read(self._folder)
                logger.info("certificates read again")
        except (OSError, ssl.SSLError) as error:
            logger.warning("the certificates cannot be read again: %s", error)

    async def reload_periodically(self) -> None:
        """Until cancelled; returns at once without a folder."""
        while self._folder is not None:
            await asyncio.sleep(POLL_INTERVAL_S)
            self.reload()

    def _read(self, folder: Path) -> None:
        assert self.server is not None
        assert self.client is not None
        stamp = _stamp(folder)
        self.client.load_verify_locations(folder / "ca.crt")
        self.server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self.key_and_chain = ((folder / "tls.key").read_bytes(), (folder / "tls.crt").read_bytes())
        self._stamp = stamp


def _stamp(folder: Path) -> tuple[int, ...]:
    return file_stamp(*(folder / name for name in _FILES))
