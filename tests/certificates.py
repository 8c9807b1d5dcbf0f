"""Certificates of the platform's parts, as a Secret of cert-manager's has them."""

import datetime
from pathlib import Path

from common.certificates import make_certificates
from common.tls import PART_NAME


def write_certificates(folder: Path, *names: str) -> Path:
    """A folder with a certificate of a new authority."""
    made = make_certificates(
        list(names or (PART_NAME, "localhost")), datetime.datetime.now(datetime.UTC)
    )
    folder.mkdir(exist_ok=True)
    (folder / "ca.crt").write_bytes(made.authority)
    (folder / "tls.key").write_bytes(made.key)
    (folder / "tls.crt").write_bytes(made.certificate)
    return folder
