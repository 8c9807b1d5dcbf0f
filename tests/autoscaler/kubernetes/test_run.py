"""The process of the controller."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WARN_AFTER_A_START_WITHOUT_A_CLUSTER = """
import logging
from autoscaler.kubernetes.run import main
try:
    main([])
except Exception:
    pass
logger = logging.getLogger("autoscaler.kubernetes.controller")
logger.warning("failed; retrying", extra={"what": "model team/m"})
logging.getLogger("kopf").info("not shown")
"""


def test_fields_of_a_warning_are_in_the_log(tmp_path: Path) -> None:
    environment = {**os.environ, "KUBECONFIG": str(tmp_path / "none")}
    ended = subprocess.run(
        [sys.executable, "-c", WARN_AFTER_A_START_WITHOUT_A_CLUSTER],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    line = ended.stderr.splitlines()[-1]
    assert line.endswith("autoscaler.kubernetes.controller: failed; retrying what=model team/m")
