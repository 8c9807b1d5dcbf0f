"""Models that MLflow saved become InferenceServices; what is not served names the way out."""

from collections.abc import Sequence
from typing import Any

import pytest

from pilotlight.imported_objects import MlflowImport, NotServed, import_mlflow
from registry.inference_service.reader import read_object

CODE = {"loader_module": "mlflow.sklearn", "model_path": "model.pkl", "python_version": "3.11.4"}
NETWORK = {
    "task": "text-classification",
    "pipeline_model_type": "BertForSequenceClassification",
    "source_model_name": "google-bert/bert-base-cased",
    "components": ["tokenizer"],
}
SAVED = {**NETWORK, "model_binary": "model"}
URI = "s3://models/iris"


def imported(
    flavors: dict[str, Any], files: Sequence[str] = (), signature: str | None = None
) -> MlflowImport:
    mlmodel = {
        "artifact_path": "model",
        "flavors": {"python_function": CODE, **flavors},
        "signature": {"inputs": signature, "outputs": None, "params": None},
    }
    return import_mlflow(mlmodel, files, uri=URI, name="iris", namespace="team", pool="cpu")


@pytest.mark.parametrize(
    ("flavors", "expected"),
    [
        pytest.param(
            {"sklearn": {"pickled_model": "model.skops", "serialization_format": "skops"}},
            ("sklearn", URI),
            id="skops",
        ),
        pytest.param({"xgboost": {"data": "model.xgb"}}, ("xgboost", URI), id="xgboost"),
        pytest.param({"lightgbm": {"data": "model.lgb"}}, ("lightgbm", URI), id="lightgbm"),
        pytest.param({"onnx": {"data": "model.onnx"}}, ("onnx", URI), id="onnx"),
        pytest.param({"transformers": SAVED}, ("huggingface", f"{URI}/model"), id="transformers"),
        pytest.param(
            {"transformers": {**NETWORK, "source_model_revision": "abc"}},
            ("huggingface", "hf://google-bert/bert-base-cased@abc"),
            id="reference-to-the-hub",
        ),
        pytest.param(
            {"sentence_transformers": {}},
            ("huggingface", f"{URI}/model.sentence_transformer"),
            id="sentence-transformers",
        ),
    ],
)
def test_the_flavor_of_a_library_is_declared(
    flavors: dict[str, Any], expected: tuple[str, str]
) -> None:
    found = imported(flavors)
    spec = read_object(found.document)
    assert (spec.format, spec.storage_uri) == expected
    assert (str(spec.name), spec.pool) == ("team/iris", "cpu")
    assert found.notes == ()


def test_notes_say_what_must_be_done_first() -> None:
    [pickled] = imported({"sklearn": {"pickled_model": "model.pkl"}}).notes
    assert "model.pkl is a pickle: serve it in pods with --allow-pickle" in pickled
    files = ["model/config.json", "components/tokenizer/tokenizer.json"]
    assert imported({"transformers": SAVED}, files).notes == (
        "copy the files of components/tokenizer to model",
    )
    assert imported({"transformers": SAVED}, [*files, "model/tokenizer.json"]).notes == ()
    columns = '[{"type": "double", "name": "width"}, {"type": "datetime", "name": "day"}]'
    [column] = imported({"xgboost": {"data": "model.xgb"}}, signature=columns).notes
    assert column.startswith("column 'day' has the type datetime")
    tensor = '[{"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}]'
    assert imported({"onnx": {"data": "model.onnx"}}, signature=tensor).notes == ()


@pytest.mark.parametrize(
    ("flavors", "way_out"),
    [
        pytest.param({}, "pool with MLServer", id="code"),
        pytest.param({"pytorch": {"model_data": "data"}}, "torch.export", id="pytorch"),
        pytest.param({"keras": {}}, "tf2onnx", id="keras"),
        pytest.param({"catboost": {}}, "format='onnx'", id="catboost"),
        pytest.param({"prophet": {}}, "prophet: convert the model to ONNX, or", id="another"),
        pytest.param({"transformers": {"peft_adaptor": "peft"}}, "base-model", id="adapter"),
    ],
)
def test_what_no_engine_reads_names_the_way_out(flavors: dict[str, Any], way_out: str) -> None:
    with pytest.raises(NotServed, match=way_out):
        imported(flavors)


def test_a_file_that_is_not_mlflows_is_refused() -> None:
    with pytest.raises(NotServed, match="is it MLflow's"):
        import_mlflow({}, [], uri=URI, name="iris", namespace="team", pool="cpu")
