"""The settings of the processes: flag, environment variable, default, and what is allowed."""

from collections.abc import Iterator
from dataclasses import Field
from typing import Any

from autoscaler.settings import AutoscalerSettings
from common.settings_table import options
from controller.settings import ControllerSettings
from gateway.settings import GatewaySettings
from runtime.settings import RuntimeSettings
from tests.surface.recorded import assert_recorded
from workflows.settings import SchedulerSettings

PROCESSES = {
    "python -m gateway": GatewaySettings,
    "python -m runtime": RuntimeSettings,
    "python -m autoscaler": AutoscalerSettings,
    "python -m workflows": SchedulerSettings,
    "pilotlight controller": ControllerSettings,
}


def _lines() -> Iterator[str]:
    for process, kind in PROCESSES.items():
        yield process
        for each in options(kind):
            yield f"    {_described(each)}"


def _described(field: Field[Any]) -> str:
    flag = "--" + field.name.replace("_", "-")
    variable = field.metadata["variable"] or f"PILOTLIGHT_{field.name.upper()}"
    need = ", required" if field.metadata["is_required"] else ""
    return f"{flag}, {variable}, default {field.default!r}{need}; {_allowed(field)}"


def _allowed(field: Field[Any]) -> str:
    """What the parser says about a value that few settings allow."""
    try:
        field.metadata["parse"]("?")
    except ValueError as error:
        return str(error).partition(", was ")[0].partition(": [Errno")[0]
    return "any text"


def test_settings_of_the_processes_are_as_recorded() -> None:
    assert_recorded("settings", _lines())
