"""What `top` shows within 80 columns and 24 lines."""

import io
from typing import Any

import pytest
from rich.console import Console

from pilotlight.commands.top import Screen, render

POD = {
    "node": "node-a", "accelerator": "CPU", "phase": "ready", "slots": 8, "busy": 3,
    "memory_bytes": 2e9, "device_bytes": 5e8, "host_bytes": 0, "disk_bytes": 0,
}  # fmt: skip
TOTALS = {"models": 40, "pods": 1, "rps": 3.2, "cold": 1, "failed": 0, "p50_ms": 10.0,
          "p99_ms": None, "age_s": 0, "queued": 0}  # fmt: skip


def model(**cells: str) -> dict[str, Any]:
    return {"cells": cells, "ready": True, "pinned": False, "failure": "", "rps": 0.1, "queued": 0}


def shown(screen: Screen) -> str:
    console = Console(file=io.StringIO(), width=80, height=24)
    console.print(render(screen, 24))
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


@pytest.fixture
def screen() -> Screen:
    made = Screen()
    names = [f"default/m{number:02}" for number in range(40)]
    rows = {name: model(pod0="device") for name in names}
    made.merge({"totals": TOTALS, "pods": {"pod0": POD}, "rows": rows, "order": names})
    return made


def test_fits_a_terminal_of_80_by_24(screen: Screen) -> None:
    lines = shown(screen).rstrip("\n").split("\n")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "40 models" in lines[0]
    assert "3/8" in shown(screen)
    assert "device pod0" in shown(screen)


def test_rows_that_are_gone_are_not_shown(screen: Screen) -> None:
    screen.merge({"rows": {"default/m00": model()}, "order": ["default/m00"]})
    assert "default/m01" not in shown(screen)


def test_names_are_no_markup() -> None:
    screen = Screen()
    name = "default/[bold]m[/bold]"
    screen.merge({"totals": TOTALS, "rows": {name: model()}, "order": [name], "pods": {}})
    assert name in shown(screen)
