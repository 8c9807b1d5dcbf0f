"""The launcher of an engine (`engine_launcher.py`) as its pod has it: facts, forks and ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from common.child_process import Command, KeptProcess
from runtime.engines.engine_adapter import EngineAdapter, LauncherFacts
from runtime.engines.server_process import server_environment
from runtime.errors import EngineMissing
from runtime.metrics import ENGINE_START_SECONDS

logger = logging.getLogger(__name__)

IMPORT_TIMEOUT_S: Final = 300.0
"""Until a launcher has imported its engine."""
STOP_GRACE_S: Final = 5.0
_SCRIPT: Final = Path(__file__).with_name("engine_launcher.py")
_LOG_BYTES: Final = 64 * 1024


class Launcher:
    """The process that has imported an engine, and forks its servers."""

    def __init__(
        self,
        adapter: EngineAdapter,
        log: Path,
        on_spawned: Callable[[str, int], None],
        on_exited: Callable[[str], None],
        on_end: Callable[[], None],
    ) -> None:
        self.facts: LauncherFacts | None = None
        self._adapter, self._log = adapter, log
        self._on_spawned, self._on_exited, self._on_end = on_spawned, on_exited, on_end
        self._settled = asyncio.Event()
        """Set once the engine was imported, or could not be."""
        environment = server_environment(os.environ)
        environment.pop("PYTHONPATH", None)
        python = adapter.program if adapter.launch.server else sys.executable
        launch = json.dumps({**asdict(adapter.launch), "program": adapter.program})
        self.process = KeptProcess(
            Command(f"{adapter.choice}-launcher", [python, "-P", str(_SCRIPT), launch],
                    environment, log),
            on_message=self._on_message,
            on_end=self._ended,
            grace_s=STOP_GRACE_S,
        )  # fmt: skip

    async def known_facts(self) -> LauncherFacts:
        """Raises EngineMissing if the engine cannot be imported, or not run."""
        with suppress(TimeoutError):
            async with asyncio.timeout(IMPORT_TIMEOUT_S):
                await self._settled.wait()
        if self.facts is None:
            raise EngineMissing(
                f"{self._adapter.program} cannot run {self._adapter.title}, or not within"
                f" {IMPORT_TIMEOUT_S:g} s: {last_error(self._log, self._adapter)}"
            )
        return self.facts

    def _on_message(self, head: Mapping[str, Any], _body: bytes) -> None:
        if "ready" in head:
            self.facts = LauncherFacts(
                str(head["version"]),
                frozenset(head["architectures"]),
                bool(head["can_sleep"]) and bool(self._adapter.sleep),
                float(head["import_s"]),
            )
            self._settled.set()
            ENGINE_START_SECONDS.labels(stage="imports").observe(self.facts.import_s)
            extra = {"engine": self._adapter.choice, "version": self.facts.version}
            logger.info("engine imported", extra={**extra, "can_sleep": self.facts.can_sleep})
        elif "spawned" in head:
            self._on_spawned(str(head["spawned"]), int(head["pid"]))
        elif "exited" in head:
            self._on_exited(str(head["exited"]))
        else:
            logger.error("engine launcher refused", extra={"error": head.get("error")})

    def _ended(self) -> None:
        """Its engines end with it; one that has imported its engine is waited for again."""
        if self.facts is None:
            self._settled.set()
        else:
            self._settled.clear()
            self.facts = None
        self._on_end()


def end_of(log: Path) -> str:
    try:
        return log.read_bytes()[-_LOG_BYTES:].decode(errors="replace")
    except OSError:
        return ""


def last_error(log: Path, adapter: EngineAdapter) -> str:
    """Why a process ended, by its log."""
    lines = [text for line in end_of(log).splitlines() if (text := line.strip())]
    errors = [line for line in lines if adapter.error_line.search(line)]
    return (errors or lines or ["it ended without a word"])[-1][-500:]
