"""Roles of processes, also of those whose parent has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from tests import servers
from tests.chaos.processes import MARK, ProcessTable

if TYPE_CHECKING:
    from pathlib import Path

_FAMILY = """
import os, time
for _ in range(2):
    if os.fork():
        break
os.write(1, b"%d\\n" % os.getpid())
time.sleep(60)
"""
"""A process, its child and its grandchild, with the command line of the forkserver."""


def test_roles_outlive_the_parent(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger")
    forkserver = subprocess.Popen(
        [sys.executable, "-c", _FAMILY, "runtime.forkserver"],
        env={**os.environ, MARK: ledger}, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert forkserver.stdout is not None
    with forkserver, forkserver.stdout:
        pids = {int(forkserver.stdout.readline()) for _ in range(3)}
        table = ProcessTable(ledger)
        try:
            before = {each.pid: each.role for each in table.read()}
            assert before.keys() == pids
            assert before[forkserver.pid] == "forkserver"
            assert sorted(before.values()) == ["forkserver", "other", "pod"]
            (pod,) = (pid for pid, role in before.items() if role == "pod")
            (child,) = (pid for pid, role in before.items() if role == "other")
            os.kill(pod, signal.SIGKILL)
            servers.wait_until(lambda: not servers.is_alive(pod), timeout_s=30, what="pod ended")
            after = {each.pid: each.role for each in table.read()}
            assert after == {forkserver.pid: "forkserver", child: "other"}
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            forkserver.wait()
