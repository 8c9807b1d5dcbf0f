"""Making the sample models: where there is no room for them, and by a process that is killed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pilotlight.errors import StartFailed
from pilotlight.sample_models import SampleModel, make_samples
from tests import servers

WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from pilotlight.errors import StartFailed
from pilotlight.sample_models import SAMPLES, make_samples
resource.setrlimit(resource.RLIMIT_FSIZE, (10**6, 10**6))
try:
    make_samples(Path(sys.argv[1]), lambda done, total, text: None, SAMPLES[:1])
except StartFailed as error:
    print(error)
"""
"""No file may exceed a megabyte; the system then reports an error as it does for a full disk."""


def test_a_failed_write_is_named_and_leaves_nothing(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_ROOM, str(tmp_path)],
        cwd=servers.REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"cannot make the sample models in {tmp_path}/models: ")
    assert "File too large" in ran.stdout
    assert [path.name for path in (tmp_path / "models").iterdir()] == []


def test_says_how_much_is_missing_before_it_makes_any(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    large = SampleModel("large", "tiny-t5", 2 * free)
    with pytest.raises(StartFailed, match=r"need .* in .*/models, whose file system has .* free"):
        make_samples(tmp_path, lambda _done, _total, _text: None, [large])
    assert not list((tmp_path / "models").iterdir())


MAKE_ONE = """
import sys
from pathlib import Path
from pilotlight.sample_models import SAMPLES, make_samples
make_samples(Path(sys.argv[1]), lambda done, total, text: None, SAMPLES[2:])
"""


def test_what_makes_a_model_ends_with_the_process_that_wants_it(tmp_path: Path) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKE_ONE, str(tmp_path)], cwd=servers.REPOSITORY
    )
    try:
        servers.wait_until(lambda: _children(maker.pid), what="the process that makes the model")
        [child] = _children(maker.pid)
        servers.wait_until(lambda: b"make_model" in _command_line(child), what="its program")
    finally:
        maker.kill()
        maker.wait()
    servers.wait_until(lambda: not _command_line(child), what="its end")
    assert not list(tmp_path.rglob("*.safetensors")), "it ended before it had made the model"


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(each) for each in text.split()]


def _command_line(pid: int) -> bytes:
    """Empty of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
