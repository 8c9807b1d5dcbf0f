"""A confined process cannot do what the tests try, in a process of their own each."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import servers

HEAD = """
import os, socket, sys, threading
from pathlib import Path
from common.confinement import ConfinementMissing, confine, filter_calls, restrict_files
ours, theirs = socket.socketpair()
unbound = socket.socket()
folder = Path(sys.argv[1])
def confined():
    confine(readable=[folder / "readable"], writable=[folder / "writable"], memory_bytes=1 << 40)
"""


def run(folder: Path, text: str) -> str:
    for name in ("readable", "writable", "other"):
        (folder / name).mkdir()
        (folder / name / "file").write_text(name)
    made = subprocess.run(
        [sys.executable, "-c", HEAD + text, str(folder)],
        cwd=servers.REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return made.stdout + made.stderr.strip().rpartition("\n")[2]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("(folder / 'other/file').read_text()", id="read elsewhere"),
        pytest.param("(folder / 'readable/file').write_text('x')", id="write what may be read"),
        pytest.param("socket.socket()", id="make a socket"),
        pytest.param("unbound.connect(('127.0.0.1', 9))", id="use a socket to connect"),
        pytest.param("unbound.bind(('127.0.0.1', 0))", id="use a socket to bind"),
        pytest.param("unbound.listen()", id="use a socket to listen"),
        pytest.param("os.fork()", id="make a process"),
        pytest.param("os.execv('/bin/true', ['true'])", id="run a program"),
        pytest.param("os.kill(os.getppid(), 0)", id="send a signal"),
    ],
)
def test_is_denied(tmp_path: Path, call: str) -> None:
    found = run(tmp_path, f"confined()\n{call}\n")
    assert found.startswith("PermissionError"), found


def test_what_is_left_works(tmp_path: Path) -> None:
    text = """
confined()
(folder / "writable/file").write_text((folder / "readable/file").read_text())
ours.sendall(b"pairs stay ")
print(theirs.recv(11).decode() + (folder / "writable/file").read_text())
thread = threading.Thread(target=print, args=("threads stay",))
thread.start()
thread.join()
"""
    assert run(tmp_path, text) == "pairs stay readable\nthreads stay\n"


@pytest.mark.parametrize("call", ["confined()", "restrict_files([], [])", "filter_calls()"])
def test_a_process_with_several_threads_is_not_half_confined(tmp_path: Path, call: str) -> None:
    text = f"""
threading.Thread(target=theirs.recv, args=(1,), daemon=True).start()
{call}
"""
    found = run(tmp_path, text)
    assert "ConfinementMissing: the process has several threads" in found
