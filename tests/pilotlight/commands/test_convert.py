"""`pilotlight convert`: a pickle becomes a skops or ONNX file in a process that can do no harm."""

import json
import os
import re
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pandas import DataFrame

from pilotlight.commands.model_files import Format, convert
from pilotlight.errors import InvalidInput, PilotlightError
from tests.runtime.engines.libraries.loaded import load
from tests.tabular_models import iris

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


def test_the_onnx_file_is_served_with_the_same_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from sklearn.linear_model import LogisticRegression

    features, classes = iris()
    model = LogisticRegression(max_iter=500).fit(features, classes)
    source = _saved(tmp_path / "model.joblib", model)
    convert(source, tmp_path / "converted", to=Format.ONNX, json_=True)
    report = json.loads(capsys.readouterr().out)
    assert (report["compared"], report["differences"]) == (["predict", "predict_proba"], [])
    answers = load(tmp_path / "converted").v1(features[::30].tolist())
    assert [each["label"] for each in answers] == model.predict(features[::30]).tolist()


def test_a_model_that_predicts_otherwise_is_written_only_if_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import numpy as np
    from sklearn.linear_model import LinearRegression

    model = LinearRegression().fit([[0.0, 0.0], [1.0, 1.0]], [0.0, 1.0])
    model.coef_ = np.pi * 1e8 * np.asarray([1.0, -1.000000001])  # equal in 32 bits
    model.intercept_ = 0.0
    source = _saved(tmp_path / "model.joblib", model)
    rows = tmp_path / "rows.json"
    rows.write_text("[[1.0, 1.0], [0.0, 0.0]]")
    target = tmp_path / "converted"
    with pytest.raises(PilotlightError, match=r"predict differs in .*--allow-differences"):
        convert(source, target, to=Format.ONNX, rows=rows, json_=True)
    assert not target.exists()
    convert(source, target, to=Format.ONNX, rows=rows, allow_differences=True)
    assert "on 2 rows, predict differs in 1 of 2 rows" in capsys.readouterr().out
    assert (target / "model.onnx").exists()


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


def test_a_file_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no such file: '.*missing\.joblib'"):
        convert(tmp_path / "missing.joblib", tmp_path, rows=None, json_=True)


@pytest.mark.parametrize(
    ("module", "name", "advice"),
    [
        ("xgboost", "XGBClassifier", "save it with model.save_model('model.ubj')"),
        ("lightgbm", "LGBMClassifier", "save it with model.booster_.save_model('model.txt')"),
    ],
)
def test_a_booster_is_saved_by_its_own_library(
    module: str, name: str, advice: str, tmp_path: Path
) -> None:
    model = getattr(import_module(module), name)(n_estimators=2).fit(*iris())
    source = _saved(tmp_path / "model.pkl", model)
    with pytest.raises(PilotlightError, match=re.escape(advice)):
        convert(source, tmp_path / "converted", rows=None, json_=True)


def test_a_function_of_the_training_script_is_named(tmp_path: Path) -> None:
    script = """
import joblib, sys
from sklearn.preprocessing import FunctionTransformer
def scaled(rows): return rows / 2
joblib.dump(FunctionTransformer(scaled), sys.argv[1])
"""
    source = tmp_path / "model.joblib"
    subprocess.run([sys.executable, "-c", script, str(source)], check=True)
    with pytest.raises(PilotlightError, match="needs 'scaled' of the script that trained it"):
        convert(source, tmp_path / "converted", rows=None, json_=True)


def test_a_model_of_a_table_with_categories_is_compared_on_those(tmp_path: Path) -> None:
    from sklearn.compose import make_column_transformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    table = DataFrame(
        {
            "size": [1.0, 2.0, 3.0, 4.0],
            "colour": ["red", "blue", "red", "blue"],
            "shape": ["round", "flat", "flat", "flat"],
        }
    )
    texts = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder())
    columns = make_column_transformer(
        (StandardScaler(), ["size"]), (texts, ["colour"]), (OrdinalEncoder(), ["shape"])
    )
    model = make_pipeline(columns, LogisticRegression()).fit(table, [0, 1, 0, 1])
    source = _saved(tmp_path / "model.joblib", model)
    convert(source, tmp_path / "converted", rows=None, json_=True)
    assert (tmp_path / "converted" / "model.skops").exists()
