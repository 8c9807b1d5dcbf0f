"""Changed files of libraries are refused or answer; none ends the process or in another error.

The quick test runs this project's own checks on changed files. The slow one loads the files and
asks those that load, in a process of its own, since a fault of a library would end it.
"""

import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from common.inference_protocol import InvalidRequest
from runtime.engines.libraries.boosters import check_lightgbm, check_xgboost
from runtime.engines.libraries.onnx_engine import onnx_signature
from runtime.errors import InferenceFailed, LoadFailed, ModelInvalid
from tests import servers
from tests.tabular_models import MAKERS, make_xgboost

FILES = 150
LOADED_FILES = 400
MAX_CPU_S = 12.0
"""Of one format's slow test: no file is begun later."""
TEXTS = ("xgboost", "lightgbm")
ROWS = [[6.8, 2.8, 4.8, 1.4], [5.1, 3.5, 1.4, 0.2]]
_NUMBERS = (b"-1", b"0", b"99999999", b"9" * 30, b"1e400", b"nan", b"")
_WHOLE_NUMBERS = (b"-1", b"-2", b"0", b"1", b"2", b"7", b"255", b"65536", b"2147483647")


def changed(content: bytes, draw: random.Random) -> bytes:
    """One to four changes: bytes, numbers in texts, parts cut, doubled or moved."""
    result = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(result) + 1)
        end = min(len(result), at + draw.choice((1, 4, 64, 1000)))
        match draw.randrange(5):
            case 0:
                result[at:end] = draw.randbytes(end - at)
            case 1:
                del result[at:end]
            case 2:
                result[at:at] = result[at:end]
            case 3:
                result[at:end] = draw.choice(_NUMBERS)
            case _:
                digits = [index for index, each in enumerate(result) if 48 <= each <= 57]
                if digits:
                    where = draw.choice(digits)
                    result[where : where + 1] = draw.choice(_NUMBERS)
    return bytes(result)


def renumbered(content: bytes, draw: random.Random) -> bytes:
    """One whole number of a text is another, which most readers take: the most telling change."""
    found = draw.choice([*re.finditer(rb"(?<![\w.+-])-?\d+(?![\w.+-])", content)])
    number = draw.choice(_WHOLE_NUMBERS)
    return content[: found.start()] + number + content[found.end() :]


def _check_onnx(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(content)
        onnx_signature(path)


def _check_lightgbm(content: bytes) -> None:
    check_lightgbm(content.decode(errors="replace"))


@pytest.mark.parametrize(
    ("name", "file", "check"),
    [
        pytest.param("xgboost", "model.json", check_xgboost, id="xgboost, JSON"),
        pytest.param("xgboost", "model.ubj", check_xgboost, id="xgboost, UBJSON"),
        pytest.param("lightgbm", "model.txt", _check_lightgbm, id="lightgbm"),
        pytest.param("onnx", "model.onnx", _check_onnx, id="onnx"),
    ],
)
def test_checks_of_changed_files_end_in_one_kind_of_error(
    name: str, file: str, check: Callable[[bytes], None], tmp_path: Path
) -> None:
    if file.endswith(".ubj") or name == "xgboost":
        make_xgboost(tmp_path, file, trees=1)
    else:
        MAKERS[name](tmp_path)
    content = (tmp_path / file).read_bytes()
    draw = random.Random(0)
    refused = 0
    for _ in range(FILES):
        try:
            check(changed(content, draw))
        except ModelInvalid:
            refused += 1
    assert refused


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        pytest.param("xgboost", b'"id":1,', b'"id":65536,', id="tree beyond the last"),
        pytest.param("xgboost", b'"id":1,', b'"id":0,', id="two trees of one id"),
        pytest.param("xgboost", b"[2147483647,0,0,2", b"[2147483647,0,0,0", id="another parent"),
        pytest.param("xgboost", b"[2147483647,0,", b"[1,0,", id="root with a parent"),
        pytest.param("lightgbm", b" num_class:3", b" num_class:65536", id="classes of objective"),
        pytest.param("lightgbm", b"num_class=3", b"num_class=9\nnum_class=3", id="field twice"),
    ],
)
def test_files_that_made_libraries_use_foreign_memory_are_refused(
    name: str, before: bytes, after: bytes, tmp_path: Path
) -> None:
    (path,) = MAKERS[name](tmp_path).iterdir()
    check = {"xgboost": check_xgboost, "lightgbm": _check_lightgbm}[name]
    content = path.read_bytes()
    check(content)
    assert before in content
    with pytest.raises(ModelInvalid):
        check(content.replace(before, after, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_changed_files_are_refused_or_answer(name: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-m", __name__, name, "1"],
        cwd=servers.REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stdout[-200:] + ran.stderr[-4000:]


def _load_changed(name: str, seed: int) -> None:
    """Any other error, or a fatal signal, ends the process with a traceback or its status."""
    from tests.runtime.engines.libraries.loaded import load

    with tempfile.TemporaryDirectory() as root:
        sound = Path(root) / "sound"
        sound.mkdir()
        MAKERS[name](sound)
        (path,) = sound.iterdir()
        folder = Path(root) / "changed"
        folder.mkdir()
        draw = random.Random(seed)
        outcomes = {"refused": 0, "answered": 0}
        load(sound).v1(ROWS)  # imports the library, which takes seconds
        began_s = time.process_time()
        for number in range(LOADED_FILES):
            if time.process_time() - began_s > MAX_CPU_S:
                break
            sys.stdout.write(f"file {number}\n")
            sys.stdout.flush()
            change = renumbered if number % 2 and name in TEXTS else changed
            (folder / path.name).write_bytes(change(path.read_bytes(), draw))
            try:
                load(folder).v1(ROWS)
                outcomes["answered"] += 1
            except (LoadFailed, InvalidRequest, InferenceFailed):
                outcomes["refused"] += 1
        assert all(outcomes.values()), outcomes
        sys.stdout.write(f"{outcomes}\n")


if __name__ == "__main__":
    _load_changed(sys.argv[1], int(sys.argv[2]))
