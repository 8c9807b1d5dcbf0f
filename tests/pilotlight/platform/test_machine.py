"""What pods of one machine share, as measured."""

import json
import os
from dataclasses import asdict
from pathlib import Path

from pilotlight.platform.machine import Machine


def test_a_machine_is_measured_once(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    found = Machine.measure(path)
    assert found.cores == len(os.sched_getaffinity(0))
    assert 0.0 < found.all_cores_speed <= 1.0
    assert found.disk_bytes_per_s > 1e6
    kept = Machine(found.cores, 0.5, 1e9)
    path.write_text(json.dumps(asdict(kept)))
    assert Machine.measure(path) == kept


def test_measurements_of_another_machine_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    assert Machine.read(path) is None
    for text in (json.dumps(asdict(Machine(4096, 0.5, 1e9))), "{}", "no JSON"):
        path.write_text(text)
        assert Machine.read(path) is None
