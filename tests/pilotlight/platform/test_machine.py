"""What pods of one machine share, as measured."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from pilotlight.platform.machine import Machine


@pytest.mark.slow
def test_a_machine_is_measured_once(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    found = Machine.measure(path)
    assert found.cores == len(os.sched_getaffinity(0))
    assert 0.0 < found.all_cores_speed <= 1.0
    assert found.disk_bytes_per_s > 1e6
    assert path.stat().st_mode & 0o077 == 0
    kept = Machine(found.cores, 0.5, 1e9)
    path.write_text(json.dumps(asdict(kept)))
    assert Machine.measure(path) == kept


def test_measurements_of_another_machine_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    assert Machine.read(path) is None
    for text in (json.dumps(asdict(Machine(4096, 0.5, 1e9))), "{}", "no JSON"):
        path.write_text(text)
        assert Machine.read(path) is None


ENDING = """
import os

float32 = None
products = 0

class Weights:
    def __matmul__(self, other):
        global products
        products += 1
        if products > 30:
            os._exit(1)

def ones(shape, kind):
    return Weights()
"""
"""A numpy whose process ends while it is measured, as where the kernel takes its memory."""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="one core is not measured")
def test_a_process_that_ends_meanwhile_is_an_error_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "numpy.py").write_text(ENDING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(OSError, match="has ended"):
        Machine.measure(tmp_path / "machine.json")
    assert not (tmp_path / "machine.json").exists()
