"""`top` in a terminal, beside a real gateway."""

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from contextlib import ExitStack, suppress
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
        self.text = self.seen = ""

    def wait_for(self, text: str) -> None:
        """Read until the text was written since the last call."""
        while text not in self.text:
            read = os.read(self._master, 65536).decode("utf-8", "replace")
            self.text += read
            self.seen += read
        self.text = self.text.partition(text)[2]

    def interrupted(self) -> int:
        """The exit status after Ctrl-C; a terminal that nobody reads would block the process."""
        self.process.send_signal(signal.SIGINT)
        with suppress(OSError):  # Linux reports a closed terminal this way
            while os.read(self._master, 65536):
                pass
        return self.process.wait(timeout=120)

    def close(self) -> None:
        servers.end_process(self.process)
        os.close(self._master)


def test_shows_models_until_it_is_interrupted(redis: servers.RedisServer, tmp_path: Path) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=60))
        harness = stack.enter_context(running_harness(tmp_path, redis.url, "default", client))
        harness.start_pods("pod-a", warm=harness.declare("wise"))
        harness.declare("other")
        terminal = Terminal("--gateway", harness.gateway.url)
        stack.callback(terminal.close)
        terminal.wait_for("device pod-a")
        other = Terminal("--gateway", harness.gateway.url, "--search", "oth")
        stack.callback(other.close)
        other.wait_for("object storage")
        assert "device pod-a" not in other.seen
        assert terminal.interrupted() == 130


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
