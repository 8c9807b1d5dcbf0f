"""`pilotlight import`: files of the command line."""

from pathlib import Path

import pytest
import yaml

from registry.inference_service.reader import read_object
from tests.pilotlight.conftest import Cli

OBJECT = """
apiVersion: serving.kserve.io/v1beta1
kind: InferenceService
metadata: {name: m, annotations: {serving.kserve.io/deploymentMode: ModelMesh}}
spec: {predictor: {model: {modelFormat: {name: onnx}, storageUri: "s3://models/m"}}}
"""


def test_models_are_written_to_a_file(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "in.yaml").write_text(OBJECT)
    ran = cli("import", "modelmesh", str(tmp_path / "in.yaml"), "-o", str(tmp_path / "out.yaml"))
    assert ran.status == 0, ran.err
    assert "storageUri: s3://models/m" in (tmp_path / "out.yaml").read_text()
    ran = cli("import", "modelmesh", str(tmp_path / "in.yaml"), "--models", "--pool", "small")
    written = yaml.safe_load(ran.out)
    assert (written["kind"], written["spec"]["pool"]) == ("Model", "small")
    assert read_object(written).pool == "small"


def test_a_dash_is_standard_output(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.yaml").write_text(OBJECT)
    monkeypatch.chdir(tmp_path)
    ran = cli("import", "modelmesh", "in.yaml", "-o", "-")
    assert ran.status == 0
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(ran.out)] == ["m"]
    assert [each.name for each in tmp_path.iterdir() if each.is_file()] == ["in.yaml"]


def test_a_file_that_cannot_be_written_is_an_error_of_the_input(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "in.yaml").write_text(OBJECT)
    target = tmp_path / "missing" / "out.yaml"
    ran = cli("import", "modelmesh", str(tmp_path / "in.yaml"), "-o", str(target))
    assert ran.status == 2
    assert f"cannot write {target}: No such file or directory" in ran.err


def test_a_model_that_mlflow_saved_is_declared_where_it_lies(cli: Cli, tmp_path: Path) -> None:
    folder, target = tmp_path / "Iris_Model", tmp_path / "iris.yaml"
    folder.mkdir()
    (folder / "MLmodel").write_text("flavors: {lightgbm: {data: model.lgb, lgb_version: 4.5.0}}")
    ran = cli("import", "mlflow", str(folder), "-o", str(target), "-n", "team")
    assert ran.status == 0, ran.err
    spec = read_object(yaml.safe_load(target.read_text()))
    assert (str(spec.name), spec.format) == ("team/iris-model", "lightgbm")
    assert spec.storage_uri == folder.as_uri()
    again = cli("import", "mlflow", str(folder), "-o", str(target))
    assert again.status == 2
    assert "--overwrite" in again.err


@pytest.mark.parametrize(
    ("text", "problem"),
    [(None, "with a file MLmodel"), ("[]", "is it MLflow's"), ("flavors: {keras: {}}", "tf2onnx")],
)
def test_what_is_no_model_of_mlflows_is_an_error_of_the_input(
    cli: Cli, tmp_path: Path, text: str | None, problem: str
) -> None:
    if text is not None:
        (tmp_path / "MLmodel").write_text(text)
    ran = cli("import", "mlflow", str(tmp_path))
    assert ran.status == 2
    assert problem in ran.err
