"""The models that are loaded, where their files lie, and whether the kernel has them in memory."""

import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

from pilotlight.sample_models.make_model import make_model

MODELS: Final = ("t5-small", "t5-base", "t5-large")
WEIGHTS: Final = "model.safetensors"
BUCKET: Final = "models"
_BUFFER_BYTES: Final = 8 << 20


def store() -> Path:
    """The folder whose one bucket holds all models; kept for the next run."""
    return Path(tempfile.gettempdir()) / "pilotlight-benchmark"


def folder_of(model: str) -> Path:
    """The model's files, made once."""
    folder = store() / BUCKET / model
    if not (folder / "config.json").exists():
        aside = store() / f"{model}-{os.getpid()}"
        make_model(model, aside)
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside.rename(folder)
    return folder


def read_file(path: Path) -> None:
    """What `dd bs=8M of=/dev/null` does: one thread, one buffer."""
    buffer = bytearray(_BUFFER_BYTES)
    with path.open("rb", buffering=0) as source:
        while source.readinto(buffer):
            pass


def drop_pages(path: Path) -> bool:
    """Have the file's pages leave memory; False where they stay."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.preadv(descriptor, [bytearray(1)], path.stat().st_size // 2, os.RWF_NOWAIT)
    except BlockingIOError:
        return True  # the page in the middle would have to be read from disk
    finally:
        os.close(descriptor)
    return False


def available_bytes() -> int:
    """Memory that could be had now."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0
