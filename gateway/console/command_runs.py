"""Commands that the console runs for operators, as processes: one job at a time, which ends.

The gateway imports nothing of them. They run at a low priority, and end with the gateway.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from registry.redis.client import Registry

MAX_JOB_S: Final = 300.0
_END_S: Final = 5.0
_PRIORITY: Final = 5
"""Of the kernel: what is left by the gateway and the pods."""
_SHOWN_CHARACTERS: Final = 2000
"""Of an error's end."""


def registry_environment(registry: Registry) -> dict[str, str]:
    """Where commands find the registry.

    Not as arguments: everybody on the machine can read those, and the URL may have a password.
    """
    return {"PILOTLIGHT_REDIS_URL": registry.url, "PILOTLIGHT_POOL": registry.pool}


@dataclass(frozen=True, slots=True)
class Step:
    """One command; `arguments` follow `pilotlight`."""

    name: str
    arguments: Sequence[str]


@dataclass(slots=True)
class Job:
    """Commands in order, and what came of them."""

    title: str
    steps: Sequence[Step]
    environment: Mapping[str, str]
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Written into the folder that the commands run in, by name."""
    context: Mapping[str, Any] = field(default_factory=dict)
    """What the page shows beside the results."""
    began_s: float = 0.0
    """Unix time."""
    took_s: float = 0.0
    """Of one that has ended."""
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    results: list[Any] = field(default_factory=list)
    """The JSON document of each step that has ended."""
    error: str = ""

    @property
    def is_running(self) -> bool:
        return not self.ended.is_set()

    def progress(self, now_s: float) -> dict[str, Any]:
        """For the page, while it runs and after."""
        done = len(self.results)
        is_between = self.is_running and done < len(self.steps)
        return {
            "running": self.is_running,
            "done": done,
            "steps": len(self.steps),
            "step": self.steps[done].name if is_between else "",
            "seconds": round(now_s - self.began_s if self.is_running else self.took_s),
        }


class CommandRuns:
    """Runs jobs; one task owns the process."""

    def __init__(self, *, is_enabled: bool) -> None:
        self.is_enabled = is_enabled
        self._latest: dict[str, Job] = {}
        self._current: Job | None = None
        self._work: asyncio.Task[None] | None = None
        self._begin = asyncio.Event()

    def latest(self, title: str) -> Job | None:
        return self._latest.get(title)

    def start(self, job: Job) -> bool:
        """False if another job runs."""
        if self._current is not None:
            return False
        job.began_s = time.time()
        self._current = self._latest[job.title] = job
        self._begin.set()
        return True

    def cancel(self, title: str) -> bool:
        """End the job with this title, if it runs."""
        if self._current is None or self._current.title != title:
            return False
        if self._work is not None:
            self._work.cancel()
        return True

    async def run(self) -> None:
        """Run jobs until cancelled."""
        while True:
            await self._begin.wait()
            self._begin.clear()
            job = self._current
            if job is not None:
                await self._carry_out(job)

    async def _carry_out(self, job: Job) -> None:
        async with asyncio.TaskGroup() as group:
            self._work = group.create_task(_run_steps(job))
        self._work = None
        if len(job.results) < len(job.steps) and not job.error:
            job.error = "cancelled"
        job.took_s = time.time() - job.began_s
        self._current = None
        job.ended.set()


async def _run_steps(job: Job) -> None:
    try:
        with tempfile.TemporaryDirectory(prefix="pilotlight-console-") as folder:
            await asyncio.to_thread(_write_files, Path(folder), job.files)
            async with asyncio.timeout(MAX_JOB_S):
                for step in job.steps:
                    job.results.append(await _run(step, job.environment, folder))
    except TimeoutError:
        job.error = f"it took longer than {MAX_JOB_S:g} s and was ended"
    except (OSError, _CommandFailed) as error:
        job.error = str(error)


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


class _CommandFailed(Exception):
    """A command ended with an error; the message is its own."""


async def _run(step: Step, environment: Mapping[str, str], folder: str) -> Any:
    """The JSON document that the command printed. Raises _CommandFailed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "pilotlight", *step.arguments, "--json",
        cwd=folder, env={**os.environ, **environment, "PILOTLIGHT_HOME": folder},
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    with suppress(ProcessLookupError):
        os.setpriority(os.PRIO_PROCESS, process.pid, _PRIORITY)
    try:
        output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            await _end(process)
    if process.returncode:
        shown = errors.decode(errors="replace").strip()[-_SHOWN_CHARACTERS:]
        raise _CommandFailed(shown or f"{step.name}: ended with status {process.returncode}")
    return orjson.loads(output)


async def _end(process: asyncio.subprocess.Process) -> None:
    """SIGTERM, and SIGKILL to one that does not end."""
    with suppress(ProcessLookupError):
        process.terminate()
        try:
            await asyncio.wait_for(asyncio.shield(process.wait()), _END_S)
        except TimeoutError:
            process.kill()
            await process.wait()
