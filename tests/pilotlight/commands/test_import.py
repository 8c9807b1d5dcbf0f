"""`pilotlight import modelmesh`: files of the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

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


def test_a_file_that_cannot_be_written_is_an_error_of_the_input(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "in.yaml").write_text(OBJECT)
    target = tmp_path / "missing" / "out.yaml"
    ran = cli("import", "modelmesh", str(tmp_path / "in.yaml"), "-o", str(target))
    assert ran.status == 2
    assert f"cannot write {target}: No such file or directory" in ran.err
