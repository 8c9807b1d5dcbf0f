"""`logs` with files as a platform leaves them."""

import subprocess
import sys
from pathlib import Path

from tests.pilotlight.conftest import Cli


def write_log(home: Path, name: str, text: str) -> Path:
    folder = home / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.log").write_text(text)
    return folder / f"{name}.log"


def test_logs_are_listed_and_printed(cli: Cli) -> None:
    write_log(cli.home, "gateway", "one\ntwo\nthree\n")
    write_log(cli.home, "pod-0", "")
    assert cli("logs").out.splitlines() == ["gateway", "pod-0"]
    assert cli("logs", "gateway").out == "one\ntwo\nthree\n"
    assert cli("logs", "gateway", "--tail", "2").out == "two\nthree\n"
    assert cli("logs", "gateway", "--tail", "9").out == "one\ntwo\nthree\n"
    assert cli("logs", "gateway", "--tail", "0").out == ""
    missing = cli("logs", "pod-9")
    assert missing.status == 1
    assert "there are: gateway, pod-0" in missing.err


def test_without_a_platform_logs_are_not_found(cli: Cli) -> None:
    assert cli("logs").status == 1


def test_lines_are_followed(tmp_path: Path) -> None:
    log = write_log(tmp_path, "pod-0", "old\n")
    program = subprocess.Popen(
        [sys.executable, "-m", "pilotlight", "logs", "pod-0", "-f", "--home", str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "old\n"
        with log.open("a") as lines:
            lines.write("begun, ")
            lines.flush()
            lines.write("ended\n")
        assert program.stdout.readline() == "begun, ended\n"
    finally:
        program.kill()
        program.wait()
        assert program.stdout is not None
        program.stdout.close()
