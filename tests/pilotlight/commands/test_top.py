"""`top` in a terminal, beside a real gateway."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from contextlib import ExitStack
from pathlib import Path

import httpx

from tests import servers
from tests.gateway.gateway_harness import running_harness


class Terminal:
    """`pilotlight top` behind a pseudo-terminal of 80 columns and 24 lines."""

    def __init__(self, *arguments: str) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pilotlight", "top", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=servers.REPOSITORY,
            env={**os.environ, "TERM": "xterm-256color"},
            start_new_session=True,
        )
        os.close(slave)
        self.text = ""

    def wait_for(self, text: str) -> None:
        """Read until the text was written since the last call."""
        while text not in self.text:
            self.text += os.read(self._master, 65536).decode("utf-8", "replace")
        self.text = self.text.partition(text)[2]

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def close(self) -> None:
        servers.end_process(self.process)
        os.close(self._master)


def test_shows_models_and_obeys_keys(redis: servers.RedisServer, tmp_path: Path) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=60))
        harness = stack.enter_context(running_harness(tmp_path, redis.url, "default", client))
        harness.start_pods("pod-a", warm=harness.declare("wise"))
        harness.declare("other")
        terminal = Terminal("--gateway", harness.gateway.url)
        stack.callback(terminal.close)
        terminal.wait_for("device pod-a")
        terminal.press("/oth\r")
        terminal.wait_for("filter 'oth'")
        terminal.wait_for("object storage")
        terminal.press("q")
        assert terminal.process.wait(timeout=120) == 0


def test_needs_a_terminal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pilotlight", "top", "--gateway", "http://127.0.0.1:1"],
        capture_output=True,
        text=True,
        cwd=servers.REPOSITORY,
        check=False,
    )
    assert done.returncode == 2
    assert "top needs a terminal" in done.stderr
