"""One container of a pod: its process, restarts, probes and status."""

import contextlib
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.kubernetes.node import launch
from tests.kubernetes.node.probes import Probe, Target, act
from tests.kubernetes.node.sandbox import Sandbox

LONGEST_BACK_OFF_S = 10.0
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


def timestamp() -> str:
    """The present time in the format of the API."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass
class Container:
    """A container's process and its state."""

    spec: Mapping[str, Any]
    sandbox: Sandbox
    specification: Path
    log: Path
    program: Mapping[str, Any]
    """Specification for `launch.py`: command, environment, directory, mounts."""
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    state: dict[str, Any] = field(default_factory=lambda: {"waiting": {"reason": "Waiting"}})
    last_state: dict[str, Any] = field(default_factory=dict)
    _probes: dict[str, Probe] = field(default_factory=dict)
    _restart_s: float = 0.0

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def target(self) -> Target:
        """The address and ports for probes and hooks."""
        ports = {
            port["name"]: port["containerPort"]
            for port in self.spec.get("ports", [])
            if "name" in port
        }
        enter = self.sandbox.enter()[:-3]  # in the pod's network, with the mounts of the suite
        return Target(self.sandbox.address, ports, enter, self.program["environment"])

    def start(self) -> None:
        """Start the process, with new probes."""
        self.specification.write_text(json.dumps(self.program))
        launcher = [sys.executable, "-S", str(Path(launch.__file__)), str(self.specification)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.sandbox.enter(), *launcher],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.state = {"running": {"startedAt": timestamp()}}
        now_s = time.monotonic()
        self._probes = {
            kind: Probe(self.spec[kind], self.target, started_s=now_s)
            for kind in PROBES
            if kind in self.spec
        }
        if hook := self.spec.get("lifecycle", {}).get("postStart"):
            act(hook, self.target, timeout_s=30)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def has_started(self) -> bool:
        """Whether it runs and its startup probe, if any, has succeeded."""
        startup = self._probes.get("startupProbe")
        return self.is_running and (startup is None or startup.has_passed)

    @property
    def is_ready(self) -> bool:
        """Whether it has started and its readiness probe, if any, succeeds."""
        readiness = self._probes.get("readinessProbe")
        return self.has_started and (readiness is None or readiness.has_passed)

    @property
    def exit_code(self) -> int | None:
        """The exit status as a shell reports it; None while it runs."""
        code = None if self.process is None else self.process.poll()
        return code if code is None or code >= 0 else 128 - code

    def tick(self, now_s: float, *, restarts: bool) -> None:
        """Run due probes, detect the end of the process, restart it when due."""
        if self.is_running:
            self._probe(now_s)
            return
        if "running" in self.state:
            self._note_end()
            wait_s = min(LONGEST_BACK_OFF_S, 2.0**self.restarts)
            self._restart_s = now_s + wait_s
        if restarts and now_s >= self._restart_s:
            self.restarts += 1
            self.start()

    def _probe(self, now_s: float) -> None:
        for kind, probe in self._probes.items():
            is_due = not probe.has_passed if kind == "startupProbe" else self.has_started
            if is_due:
                probe.tick(now_s)
            if kind != "readinessProbe" and probe.has_failed:
                self.kill(signal.SIGTERM)

    def _note_end(self) -> None:
        code = self.exit_code or 0
        ended = {
            "exitCode": code,
            "reason": "Completed" if code == 0 else "Error",
            "startedAt": self.state["running"]["startedAt"],
            "finishedAt": timestamp(),
        }
        self.last_state = self.state = {"terminated": ended}

    def stop(self, *, grace_s: float) -> None:
        """Run the preStop hook, send SIGTERM, and SIGKILL after the grace period."""
        give_up_s = time.monotonic() + grace_s
        hook = self.spec.get("lifecycle", {}).get("preStop")
        if hook and self.is_running:
            act(hook, self.target, timeout_s=max(1.0, grace_s))
        self.kill(signal.SIGTERM)
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(max(0.0, give_up_s - time.monotonic()))
            self.kill(signal.SIGKILL)
            self.process.wait()

    def kill(self, number: signal.Signals) -> None:
        """Signal the process; with SIGKILL also all of its descendants."""
        if self.process is None or not self.is_running:
            return
        if number == signal.SIGKILL:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def status(self) -> dict[str, Any]:
        """Its entry in `containerStatuses`."""
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": self.spec["image"],
            "ready": self.is_ready,
            "started": self.has_started,
            "restartCount": self.restarts,
            "state": self.state,
            "lastState": self.last_state if "running" in self.state else {},
        }


def mounts_of(
    spec: Mapping[str, Any], volumes: Mapping[str, Path], always: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The mounts of a container for `launch.py`."""
    wanted = [
        {
            "source": str(volumes[item["name"]] / item.get("subPath", "")),
            "target": item["mountPath"],
            "read_only": bool(item.get("readOnly")),
        }
        for item in spec.get("volumeMounts", [])
    ]
    return [*map(dict, always), *sorted(wanted, key=lambda item: len(str(item["target"])))]
