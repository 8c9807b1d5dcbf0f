"""Making the sample models where there is no room for them."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests import servers

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT_ROOM = """
import resource, sys
from pathlib import Path
from pilotlight.errors import StartFailed
from pilotlight.sample_models.samples import SAMPLES, make_samples
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
        cwd=servers.REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"cannot make the sample models in {tmp_path}/models: ")
    assert "File too large" in ran.stdout
    assert [path.name for path in (tmp_path / "models").iterdir()] == []
