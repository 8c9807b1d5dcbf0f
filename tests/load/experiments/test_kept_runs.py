"""What single runs came to is on disk as they end, as JSON that any reader takes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from load.experiments.errors import ExperimentError
from load.experiments.result_log import ResultLog
from registry.domain.model import RoutingPolicy


@dataclass(frozen=True, slots=True)
class Something:
    """Of all kinds of values."""

    policy: RoutingPolicy
    inner: Any


def test_a_result_is_on_disk_when_it_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    value = Something(RoutingPolicy.AUTO, {1: (np.float64(0.5), None, inf), "all": np.arange(2)})
    with ResultLog(path) as kept:
        kept.keep("runs", value, [Something(RoutingPolicy.RANDOM, path)])
        [line] = path.read_text().splitlines()
        assert kept.count == 1
    assert json.loads(line) == {
        "what": "runs",
        "task": {"policy": "auto", "inner": {"1": [0.5, None, "inf"], "all": [0, 1]}},
        "result": [{"policy": "random", "inner": str(path)}],
    }


def test_a_full_disk_is_told() -> None:
    with (
        ResultLog(Path("/dev/full")) as kept,
        pytest.raises(ExperimentError, match="--out: cannot write /dev/full: "),
    ):
        kept.keep("runs", 1, 2)
