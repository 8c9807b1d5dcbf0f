"""`make demo-llm`, and what it says before it downloads anything."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def run(script: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / script, *words],
        env={**os.environ, "PILOTLIGHT_VLLM_PYTHON": "", **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("script", ["demo-llm", "vllm"])
def test_nothing_is_downloaded_unless_asked(tmp_path: Path, script: str) -> None:
    done = run(script, HOME=str(tmp_path), PILOTLIGHT_HOME=str(tmp_path / "home"))
    assert done.returncode == 1
    assert "3 GB to download" in done.stderr
    assert "FLAGS=--yes" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_models_in_a_budget_for_one_are_answered_in_turn(vllm_python: str, tmp_path: Path) -> None:
    done = run("demo-llm", str(tmp_path), PILOTLIGHT_VLLM_PYTHON=vllm_python)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "watch it in a browser: http://" in done.stdout
    assert done.stdout.count("12 tokens") == 3
    left = [
        each.parent.name
        for each in Path("/proc").glob("[0-9]*/cmdline")
        if str(tmp_path) in each.read_bytes().decode(errors="replace")
    ]
    assert not left
