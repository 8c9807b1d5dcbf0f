"""Which of a folder's files are the model, by the declared format, else by what lies there."""

import pytest

from runtime.errors import ModelInvalid, ModelUnsupported
from runtime.storage.declared_files import declared_paths
from runtime.storage.listing import RemoteFile, asset_files, library_files

MLFLOW = ["MLmodel", "conda.yaml", "python_env.yaml", "requirements.txt", "input_example.json",
          "serving_input_example.json", "metadata/MLmodel"]  # fmt: skip
HUB = ["config.json", "README.md", "tokenizer.json", "vocab.txt", "special_tokens_map.json",
       "generation_config.json"]  # fmt: skip


@pytest.mark.parametrize(
    ("declared", "model", "beside"),
    [
        pytest.param("sklearn", "model.skops", [*HUB, *MLFLOW], id="skops on the hub"),
        pytest.param("sklearn", "model.skops", ["model.onnx", "model.pkl"], id="skops first"),
        pytest.param("sklearn", "model.pkl", MLFLOW, id="mlflow sklearn"),
        pytest.param(
            "sklearn",
            "model/model.pkl",
            [f"model/{each}" for each in MLFLOW],
            id="mlflow's artifact folder",
        ),
        pytest.param(
            "sklearn",
            "sklearn-model/model.skops",
            ["sklearn-model/MLmodel", "sklearn-model/requirements.txt"],
            id="a folder of mlflow's log_model",
        ),
        pytest.param(
            "sklearn",
            "clf.joblib",
            ["metrics.json", "columns.json", "data.csv"],
            id="joblib of a notebook",
        ),
        pytest.param("sklearn", "model.joblib", ["scaler.joblib"], id="model.* first"),
        pytest.param(
            "sklearn",
            "model.joblib",
            ["config.json", "model.safetensors", "m.pt2"],
            id="networks beside",
        ),
        pytest.param("xgboost", "model.xgb", MLFLOW, id="mlflow xgboost"),
        pytest.param("xgboost", "data/model.ubj", ["metrics.json", "MLmodel"], id="data/model.*"),
        pytest.param(
            "xgboost",
            "booster.json",
            ["metrics.json", "feature_names.txt", "config.json", "model_index.json"],
            id="xgboost's json among others",
        ),
        pytest.param("xgboost", "model.bst", ["model.txt", "model.joblib"], id="bst"),
        pytest.param("lightgbm", "model.lgb", MLFLOW, id="mlflow lightgbm"),
        pytest.param(
            "lightgbm",
            "model.txt",
            ["metrics.json", "feature_names.txt", "columns.txt"],
            id="lightgbm",
        ),
        pytest.param(
            "lightgbm",
            "booster.txt",
            ["feature_names.txt", "README.txt"],
            id="lightgbm by what other names mean",
        ),
        pytest.param(
            "onnx",
            "model.onnx",
            [*HUB, "model.safetensors", "pytorch_model.bin"],
            id="optimum's export",
        ),
        pytest.param(
            "onnx",
            "onnx/model.onnx",
            [*HUB, "onnx/model_quantized.onnx", "model.safetensors"],
            id="onnx folder of the hub",
        ),
        pytest.param(
            "onnx",
            "model.onnx",
            ["model.skops", "model.ubj", "m.pt2", "a.joblib"],
            id="onnx beside other libraries",
        ),
        pytest.param("onnx", "2/model.onnx", ["1/model.onnx", "config.pbtxt"], id="versions"),
        pytest.param(
            "triton",
            "cifar10/2/model.onnx",
            ["cifar10/1/model.onnx", "cifar10/config.pbtxt"],
            id="triton's repository",
        ),
        pytest.param(
            "triton", "1/model.onnx", ["config.pbtxt", "config.json", "labels.txt"], id="triton"
        ),
    ],
)
def test_one_file_of_the_declared_library_is_chosen(
    declared: str, model: str, beside: list[str]
) -> None:
    assert declared_paths([model, *beside], declared, "s3://b/m", takes_pickles=True) == {model}


def test_external_data_of_onnx_comes_with_it() -> None:
    found = declared_paths(
        ["model.onnx", "model.onnx_data", "weights.bin", "tokenizer.json", "model.safetensors"],
        "onnx",
        "s3://b/m",
    )
    assert found == {"model.onnx", "model.onnx_data", "weights.bin"}


@pytest.mark.parametrize(
    ("declared", "own", "beside"),
    [
        pytest.param(
            "huggingface",
            ["config.json", "model.safetensors", "vocab.txt"],
            ["model.onnx", "model.pt2", "model.skops", "a.pkl", "model_index.json"],
            id="transformers",
        ),
        pytest.param(
            "huggingface",
            ["model_index.json", "unet/config.json", "vae/a.safetensors"],
            ["model.onnx", "vae/model.onnx"],
            id="diffusers",
        ),
        pytest.param("huggingface", ["config.json", "model.pt2"], ["a.joblib"], id="program"),
        pytest.param(
            "pytorch",
            ["model.pt2", "config.json"],
            ["model.safetensors", "other.pt2", "model.safetensors.index.json"],
            id="torch program",
        ),
        pytest.param(
            "pytorch",
            ["config.json", "model.safetensors"],
            ["model.onnx"],
            id="network declared as pytorch",
        ),
    ],
)
def test_networks_keep_their_folder_without_other_models(
    declared: str, own: list[str], beside: list[str]
) -> None:
    assert declared_paths([*own, *beside], declared, "s3://b/m") == set(own)


@pytest.mark.parametrize(
    ("declared", "paths", "kind", "says"),
    [
        pytest.param(
            "sklearn",
            ["config.json", "model.safetensors"],
            ModelInvalid,
            r"no file of sklearn: one of \*.skops.*found \['config.json'",
            id="absent",
        ),
        pytest.param("onnx", ["model.skops"], ModelInvalid, r"\*.onnx.*model.skops", id="other"),
        pytest.param(
            "lightgbm",
            ["requirements.txt"],
            ModelInvalid,
            "no file of lightgbm",
            id="text that is no model",
        ),
        pytest.param("sklearn", ["model.joblib"], ModelUnsupported, "--allow-pickle", id="pickle"),
        pytest.param("xgboost", ["model.pkl"], ModelUnsupported, "save_model", id="xgboost's"),
        pytest.param("onnx", ["a.onnx", "b.onnx"], ModelInvalid, "several models", id="several"),
    ],
)
def test_what_is_needed_and_what_was_found_is_said(
    declared: str, paths: list[str], kind: type[ModelInvalid], says: str
) -> None:
    with pytest.raises(kind, match=says):
        declared_paths(paths, declared, "s3://b/m")


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        pytest.param(["model.onnx", "README.md"], ("model.onnx",), id="onnx"),
        pytest.param(
            ["model.onnx", "w.bin", "labels.txt"], ("model.onnx", "w.bin"), id="external data"
        ),
        pytest.param(["iris.skops", "requirements.txt"], ("iris.skops",), id="skops"),
        pytest.param(["model.json", "model-settings.json"], ("model.json",), id="xgboost"),
        pytest.param(["model.txt", "readme.txt"], ("model.txt",), id="lightgbm"),
        pytest.param(
            ["1/model.onnx", "2/model.onnx", "10/model.onnx", "config.pbtxt"],
            ("10/model.onnx",),
            id="highest version by number",
        ),
        pytest.param(["config.json", "model.safetensors", "a.onnx"], (), id="transformers"),
        pytest.param(["config.json", "vocab.txt"], (), id="no weights yet"),
        pytest.param(["model.pt2", "notes.txt"], (), id="exported program"),
        pytest.param([], (), id="empty"),
    ],
)
def test_the_model_is_found(paths: list[str], expected: tuple[str, ...]) -> None:
    assert library_files(paths, "s3://b/m") == expected


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        pytest.param(["a.onnx", "b.onnx"], "several models", id="several"),
        pytest.param(["model.joblib"], "skops.io.dump", id="joblib"),
        pytest.param(["1/model.pkl"], "runs code", id="pickle"),
    ],
)
def test_other_folders_are_refused_with_the_way_out(paths: list[str], says: str) -> None:
    with pytest.raises(ModelInvalid, match=says):
        library_files(paths, "s3://b/m")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        pytest.param("1/saved_model.pb", "tf2onnx", id="tensorflow"),
        pytest.param("m.pdmodel", "paddle2onnx", id="paddle"),
        pytest.param("m.pmml", "ONNX", id="pmml"),
        pytest.param("m.mar", "torch.export", id="torchserve"),
    ],
)
def test_formats_without_an_engine_say_so(path: str, says: str) -> None:
    with pytest.raises(ModelInvalid, match=says):
        asset_files([RemoteFile(path, 10)], "s3://b/m")
