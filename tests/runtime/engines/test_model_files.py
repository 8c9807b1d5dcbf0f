"""The files of a model's folder while a library still downloads into a hidden part of it."""

from __future__ import annotations

import os
import shutil
import threading
from typing import TYPE_CHECKING

import pytest

from runtime.engines.building import model_files

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("config.json", "1/model.onnx", ".staging/hub/config.json", "1/.cache/x", ".lock"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return tmp_path


def test_hidden_files_and_folders_are_the_caches_own(folder: Path) -> None:
    os.symlink(folder / "1" / "model.onnx", folder / "linked.onnx")
    os.symlink(folder / "gone", folder / "broken")
    found = [str(path.relative_to(folder)) for path in model_files(folder)]
    assert found == ["1/model.onnx", "config.json", "linked.onnx"]


def test_a_download_that_ends_meanwhile_disturbs_nothing(folder: Path) -> None:
    has_ended = threading.Event()

    def download() -> None:
        while not has_ended.is_set():
            for number in range(50):
                (folder / ".staging" / "hub" / str(number)).mkdir(parents=True, exist_ok=True)
            shutil.rmtree(folder / ".staging")

    thread = threading.Thread(target=download)
    thread.start()
    try:
        for _ in range(300):
            assert len(model_files(folder)) == 2
    finally:
        has_ended.set()
        thread.join()
