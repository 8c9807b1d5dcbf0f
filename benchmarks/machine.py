"""Facts of the machine that a benchmark ran on, and the folder of results."""

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import orjson

REPOSITORY: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = REPOSITORY / "benchmarks" / "results"
_PACKAGES: Final = (
    "fastapi", "starlette", "uvicorn", "uvloop", "httptools", "httpx", "aiohttp", "kserve", "redis",
    "hiredis", "torch", "transformers", "safetensors",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """Facts of the machine and of the code that ran on it."""

    at: str
    commit: str
    is_dirty: bool
    """Whether tracked files differed from the commit."""
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    python: str
    packages: dict[str, str]
    load_average: tuple[float, float, float]

    def line(self) -> str:
        """The facts as one line of a summary."""
        dirty = " with changes" if self.is_dirty else ""
        return (
            f"{self.at}, commit {self.commit}{dirty}, {self.cores} cores of {self.cpu}, "
            f"{self.memory_bytes / (1 << 30):.0f} GiB, Linux {self.kernel}, Python {self.python}, "
            f"load average {self.load_average[0]:.2f}"
        )


def machine_facts() -> Machine:
    return Machine(
        at=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=_git("rev-parse", "--short=12", "HEAD"),
        is_dirty=bool(_git("status", "--porcelain", "--untracked-files=no")),
        cpu=_cpu_model(),
        cores=os.cpu_count() or 1,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=platform.release(),
        python=platform.python_version(),
        packages=_versions(),
        load_average=os.getloadavg(),
    )


def save(name: str, machine: Machine, settings: dict[str, Any], samples: Any) -> Path:
    """Write settings and raw samples with the machine's facts; returns the file."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    stamp = machine.at.replace(":", "").replace("+0000", "Z")
    path = RESULTS / f"{name}-{stamp}.json"
    content = {"machine": asdict(machine), "settings": settings, "samples": samples}
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    path.write_bytes(orjson.dumps(content, option=options))
    return path


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else "unknown"
