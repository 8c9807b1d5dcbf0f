"""What of this machine would keep `pilotlight up` from working, or make it slow."""

import os
import re
import resource
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pilotlight.doctor import MIN_DRIVER, Finding, ok, problem, warning
from pilotlight.errors import StartFailed
from pilotlight.platform.processes import redis_binary

MIN_MEMORY_BYTES: Final = 4 << 30
MIN_DISK_BYTES: Final = 10 << 30
MIN_SHARED_BYTES: Final = 1 << 30
MIN_FILES: Final = 4096
_GIB: Final = 1 << 30


def machine_findings(state_dir: Path, *, port: int) -> list[Finding]:
    """`port`: that of the gateway."""
    return [
        *_redis(),
        *_memory(Path("/proc/meminfo")),
        *_disk("disk", _existing(state_dir), MIN_DISK_BYTES, "free some space"),
        *_disk(
            "shared memory",
            Path("/dev/shm"),
            MIN_SHARED_BYTES,
            "enlarge /dev/shm (a container: --shm-size=2g)",
        ),
        *_writable(state_dir),
        *_files(),
        *_port(port),
        *_gpu(_driver()),
    ]


def _redis() -> Iterator[Finding]:
    try:
        yield ok("Redis", redis_binary())
    except StartFailed as error:
        yield problem("Redis", str(error), "install pilotlight[platform], or use --redis-url")


def _memory(meminfo: Path) -> Iterator[Finding]:
    found = re.search(r"MemAvailable:\s+(\d+) kB", meminfo.read_text())
    if found is None:
        return
    available = int(found[1]) * 1024
    if available < MIN_MEMORY_BYTES:
        yield warning(
            "memory",
            f"{available / _GIB:.1f} GiB are available; a pod takes 2 GiB and more",
            "use fewer pods, or less of --pod-memory",
        )
    else:
        yield ok("memory", f"{available / _GIB:.1f} GiB are available")


def _disk(subject: str, folder: Path, wanted: int, remedy: str) -> Iterator[Finding]:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        yield problem(subject, f"{folder}: {error}", remedy)
        return
    if free < wanted:
        yield warning(
            subject,
            f"{folder} has {free / _GIB:.1f} GiB free, fewer than {wanted / _GIB:.0f}",
            remedy,
        )
    else:
        yield ok(subject, f"{folder} has {free / _GIB:.1f} GiB free")


def _existing(folder: Path) -> Path:
    return next(each for each in (folder, *folder.parents) if each.exists())


def _writable(state_dir: Path) -> Iterator[Finding]:
    folder = _existing(state_dir)
    if not os.access(folder, os.W_OK | os.X_OK):
        yield problem(
            "state directory",
            f"{folder} cannot be written",
            "make it yours, or name another one with --home",
        )


def _files() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < MIN_FILES:
        yield warning(
            "open files",
            f"at most {hard}: that bounds the gateway's connections",
            f"raise the limit to {MIN_FILES} or more (`ulimit -Hn`)",
        )
    else:
        yield ok("open files", f"{soft}, at most {hard}")


def _port(port: int) -> Iterator[Finding]:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            yield problem(
                f"port {port}",
                f"cannot be opened: {error.strerror}",
                "end what listens there (a platform that runs?), or use --port",
            )
        else:
            yield ok(f"port {port}", "is free")


def _driver() -> str | None:
    """The NVIDIA driver's version; empty: there is none that works; None: no GPU."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return made.stdout.strip().splitlines()[0] if made.stdout.strip() else ""


def _gpu(driver: str | None) -> Iterator[Finding]:
    if driver is None:
        yield ok("GPU", "none; models run on the CPU")
    elif not driver:
        yield problem(
            "GPU",
            "there is one, and nvidia-smi does not answer",
            "install NVIDIA's driver; in a container, its runtime",
        )
    elif int(driver.partition(".")[0]) < MIN_DRIVER:
        yield problem(
            "GPU",
            f"driver {driver}; CUDA 13 needs {MIN_DRIVER} or later",
            "upgrade the driver, or hide the GPU: CUDA_VISIBLE_DEVICES=",
        )
    else:
        yield ok("GPU", f"driver {driver}")
