"""`console`: the address of a gateway's console, or of one that kubectl forwards."""

import sys
from pathlib import Path

import pytest

from tests.pilotlight.conftest import Cli

KUBECTL = """#!{python}
import sys
print("Forwarding from 127.0.0.1:40123 -> 8080")
print("Forwarding from [::1]:40123 -> 8080")
print(*sys.argv[1:], file=sys.stderr)
sys.exit({status})
"""


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def put_kubectl(folder: Path, *, status: int = 0) -> None:
    """A program of that name, which says what it was asked for."""
    program = folder / "kubectl"
    program.write_text(KUBECTL.format(python=sys.executable, status=status))
    program.chmod(0o755)


def test_prints_the_address_of_a_gateway(cli: Cli) -> None:
    ran = cli("console", "--gateway", "localhost:8080")
    assert ran.out == "http://localhost:8080/console\n"


def test_prints_the_address_that_kubectl_forwards(cli: Cli, on_path: Path) -> None:
    put_kubectl(on_path)
    ran = cli("console", "--kubernetes", "--context", "mine", "--port", "40123", "--json")
    assert ran.status == 0, ran.err
    assert ran.document == {"console": "http://127.0.0.1:40123/console"}


def test_says_what_failed(cli: Cli, on_path: Path) -> None:
    assert "needs kubectl" in cli("console", "--kubernetes").err
    put_kubectl(on_path, status=1)
    assert "kubectl ended with status 1" in cli("console", "--kubernetes").err
    assert cli("console", "--context", "mine").status == 2
