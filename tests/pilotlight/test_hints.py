"""Hints of other packages name options that exist."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
from typer.main import get_command

from pilotlight.cli import create_app
from runtime.errors import DiskFull
from runtime.settings import RuntimeSettings
from tests.runtime.tiers.test_disk_budget import SIZE, fetch, make_cache, make_model

if TYPE_CHECKING:
    from pathlib import Path


def test_a_full_disk_names_options_of_the_pod_and_of_up(tmp_path: Path) -> None:
    spec = make_model(tmp_path / "source" / "a")
    cache = make_cache(tmp_path / "cache", budget_bytes=SIZE // 2)
    with pytest.raises(DiskFull) as raised:
        fetch(cache, spec)
    of_pods, of_up = re.findall(r"--[a-z-]+", str(raised.value))
    command: Any = get_command(create_app())
    up = command.commands["up"]
    assert of_up in {name for each in up.params for name in each.opts}
    of_settings = {f"--{each.name.replace('_', '-')}" for each in fields(RuntimeSettings)}
    assert of_pods in of_settings
