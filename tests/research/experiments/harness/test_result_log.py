"""Results of single runs are on disk as soon as they end, as standard JSON."""

import json
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from registry.domain.model import RoutingPolicy
from research.experiments.harness.experiment import ExperimentError
from research.experiments.harness.running import ResultLog


@dataclass(frozen=True, slots=True)
class AnyValues:
    """A task or result with values of all kinds."""

    policy: RoutingPolicy
    inner: Any


def test_a_result_is_on_disk_when_keep_returns(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    value = AnyValues(RoutingPolicy.AUTO, {1: (np.float64(0.5), None, inf), "all": np.arange(2)})
    with ResultLog(path) as log:
        log.keep("runs", value, [AnyValues(RoutingPolicy.RANDOM, path)])
        [line] = path.read_text().splitlines()
        assert log.count == 1
    assert json.loads(line) == {
        "what": "runs",
        "task": {"policy": "auto", "inner": {"1": [0.5, None, "inf"], "all": [0, 1]}},
        "result": [{"policy": "random", "inner": str(path)}],
    }


def test_a_full_disk_is_an_error() -> None:
    with (
        ResultLog(Path("/dev/full")) as log,
        pytest.raises(ExperimentError, match="--out: cannot write /dev/full: "),
    ):
        log.keep("runs", 1, 2)
