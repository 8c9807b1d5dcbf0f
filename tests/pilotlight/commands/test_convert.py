"""`pilotlight convert`: a pickle becomes a skops file in a process that can do no harm."""

from __future__ import annotations

import json
import os
import socket
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from pilotlight.commands.convert import convert
from pilotlight.errors import InvalidInput, PilotlightError
from pilotlight.sample_models.make_tabular import iris

pytestmark = pytest.mark.slow

joblib: Any = import_module("joblib")


class _Runs:
    """Calls a function when it is read."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def _saved(path: Path, content: Any) -> Path:
    joblib.dump(content, path)
    return path


def test_the_skops_file_predicts_as_the_pickle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sklearn.svm import SVC

    model = SVC().fit(*iris())
    source = _saved(tmp_path / "model.joblib", model)
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps(iris()[0][:5].tolist()))
    convert(source, tmp_path / "converted", rows=rows, json_=True)
    report = json.loads(capsys.readouterr().out)
    assert (report["estimator"], report["rows"], report["compared"]) == ("SVC", 5, ["predict"])
    assert (tmp_path / "converted" / "model.skops").stat().st_size == report["bytes"]


def test_code_of_a_pickle_reaches_no_network_file_or_program(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("credentials")
    target = tmp_path / "converted"
    with socket.create_server(("127.0.0.1", 0)) as server:
        attempts = {
            "connect": _Runs(socket.create_connection, server.getsockname()),
            "read": _Runs(Path.read_text, secret),
            "write": _Runs(os.mkdir, str(tmp_path / "made")),
            "run": _Runs(os.execv, "/bin/true", ["true"]),
            "signal": _Runs(os.kill, os.getpid(), 0),
        }
        for name, attempt in attempts.items():
            source = _saved(tmp_path / f"{name}.joblib", attempt)
            with pytest.raises(PilotlightError, match="PermissionError"):
                convert(source, target, rows=None, json_=True)
    assert not (tmp_path / "made").exists()
    assert not target.exists()


def test_a_model_of_another_scikit_learn_is_refused(tmp_path: Path) -> None:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=500).fit(*iris())
    source = _saved(tmp_path / "model.pkl", model)
    version = import_module("sklearn").__version__.encode()
    source.write_bytes(source.read_bytes().replace(version, b"0.0.1"))
    with pytest.raises(PilotlightError, match=r"scikit-learn 0\.0\.1"):
        convert(source, tmp_path / "converted", rows=None, json_=True)


@pytest.mark.parametrize("content", [b"", b"\x80\x04", b"no pickle at all"])
def test_files_that_are_no_pickles_are_refused(content: bytes, tmp_path: Path) -> None:
    source = tmp_path / "model.pkl"
    source.write_bytes(content)
    with pytest.raises(PilotlightError, match="cannot convert"):
        convert(source, tmp_path / "converted", rows=None, json_=True)


def test_wrong_arguments_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        convert(tmp_path / "model.txt", tmp_path, rows=tmp_path / "none", json_=True)
    assert len(refused.value.problems) == 2
