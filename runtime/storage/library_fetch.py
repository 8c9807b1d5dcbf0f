"""One download by a library: `python -m runtime.storage.library_fetch URI STAGING [HOSTS]`.

Writes the folder of the model's files into `folder.json` in the staging folder.
`hf://organisation/model[:revision]` is fetched by huggingface_hub, whose cache, token and
`HF_HUB_OFFLINE` apply; everything else by KServe's storage library. With HOSTS, separated by
commas, the process connects to public addresses and these hosts only.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from runtime.storage.public_addresses import REFUSAL, AddressRefused, confine_network

HUB_PATTERNS = ("*.json", "*.txt", "*.model", "*.safetensors", "*.pt2")
HUB_SCHEME = "hf://"
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def main() -> int:
    """Fetch; on failure the last line on standard error says why."""
    uri, staging = sys.argv[1], Path(sys.argv[2])
    if len(sys.argv) > 3:
        confine_network(frozenset(sys.argv[3].split(",")) - {""})
    try:
        folder = (
            from_hub(uri) if uri.startswith(HUB_SCHEME) else from_library(uri, staging / "model")
        )
    except Exception as error:  # the libraries document no exceptions of their own
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        sys.stderr.write(f"\n{REFUSAL if _is_refused(error) else reason}\n")
        return 1
    aside = staging / "folder.json.aside"
    aside.write_text(json.dumps(str(folder)))
    aside.rename(staging / "folder.json")
    return 0


def _is_refused(error: BaseException | None) -> bool:
    """Whether a refused address is the cause of an error, through all that hide it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, AddressRefused):
            return True
        seen.add(id(error))
        error = error.__cause__ or error.__context__
    return False


def from_hub(uri: str) -> str:
    """The folder of a snapshot in huggingface_hub's cache."""
    from huggingface_hub import snapshot_download

    path, _, revision = uri.removeprefix(HUB_SCHEME).partition(":")
    if path.count("/") != 1 or not all(path.split("/")):
        raise ValueError(f"storage URI {uri!r} must be hf://organisation/model[:revision]")
    return snapshot_download(path, revision=revision or None, allow_patterns=list(HUB_PATTERNS))


def from_library(uri: str, folder: Path) -> str:
    """The folder that KServe's storage library filled."""
    try:
        from kserve_storage import Storage
    except ImportError as error:
        raise ValueError(
            f"{uri} is read by KServe's storage library: install kserve-storage"
            " (pip install 'pilotlight[storage]') in the pods' environment"
        ) from error
    folder.mkdir(parents=True, exist_ok=True)
    confine(folder.parent)
    return str(Storage.download(uri, str(folder)))


def confine(folder: Path) -> None:
    """Refuse writes of this process elsewhere: names of objects may lead out of a folder."""
    root = os.path.realpath(folder) + os.sep
    tempfile.tempdir = str(folder)
    sys.dont_write_bytecode = True

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        if event != "open":
            return
        path, _, flags = arguments
        if isinstance(path, str | bytes) and isinstance(flags, int) and flags & WRITE_FLAGS:
            target = os.path.realpath(os.fsdecode(path))
            if not target.startswith((root, "/dev/")):
                raise PermissionError(
                    f"the model has a file with a path outside its folder: {target}"
                )

    sys.addaudithook(refuse)


if __name__ == "__main__":
    sys.exit(main())
