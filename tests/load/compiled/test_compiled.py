"""A simulation with the compiled code writes the very records of one without."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from load.compiled.build import ROOT

if TYPE_CHECKING:
    from pathlib import Path

POLICIES = "colocation,auto"
MODELS = "/".join(f"t5-{number:02d}" for number in range(12))
COMPILER = (sysconfig.get_config_var("CC") or "cc").split()[0]


def simulated(out: Path, *before: str) -> tuple[Any, str]:
    """All records by file, and what was said on standard error."""
    ran = subprocess.run(
        [
            sys.executable, "-P", "-m", *before, "pilotlight", "simulate",
            "--cluster", str(ROOT / "manifests/simulator/eight-pods.yaml"),
            "--trace", f"poisson:rate=30,duration=10s,tenant=default,names={MODELS}",
            "--policy", POLICIES, "--seed", "3", "--out", str(out),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    files = sorted(out.rglob("*.parquet"))
    assert len(files) == POLICIES.count(",") + 1
    return [pq.read_table(file).to_pylist() for file in files], ran.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C compiler")
def test_compiled_and_plain_records_are_the_same(tmp_path: Path) -> None:
    plain, _ = simulated(tmp_path / "plain")
    compiled, said = simulated(tmp_path / "compiled", "load.compiled")
    assert "simulator: compiled" in said
    assert sum(map(len, plain)) > 400
    assert json.dumps(compiled, default=str) == json.dumps(plain, default=str)
