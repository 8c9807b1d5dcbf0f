"""A runner's process has all limits that this kernel grants, together."""

import subprocess
import sys

from tests import servers

PROGRAM = """
import socket
from pathlib import Path
from workflows.runner.__main__ import confine
granted = confine(1 << 30)
refused = []
for call in (socket.socket, Path("/etc/passwd").read_text, Path("/etc").iterdir):
    try:
        list(call())
    except (PermissionError, TypeError) as error:
        refused.append(type(error).__name__)
print([each for each in granted if each != "network-namespace"], refused)
"""


def test_files_and_system_calls_are_both_restricted() -> None:
    made = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=servers.REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert made.stdout == f"{['seccomp', 'landlock']} {['PermissionError'] * 3}\n", made.stderr
