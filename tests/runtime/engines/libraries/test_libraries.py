"""Models of ONNX, XGBoost, LightGBM and scikit-learn answer as their libraries do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.inference_protocol import InvalidRequest
from common.inference_protocol.tensors import Tensor, bytes_tensor, numeric_tensor
from registry.domain.model import Task
from runtime.engines.building import check_format
from runtime.errors import ModelInvalid
from runtime.tasks.tabular import instance_tensors
from tests.runtime.engines.libraries.loaded import load, onnx_model
from tests.tabular_models import MAKERS, iris

ROWS = [[6.8, 2.8, 4.8, 1.4], [5.1, 3.5, 1.4, 0.2]]
TABULAR = ("sklearn", "xgboost", "lightgbm")


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, make in MAKERS.items()}


def _expected(name: str, folder: Path, rows: Any) -> Any:
    """What the library itself says."""
    values = np.asarray(rows, np.float32)
    match name:
        case "sklearn":
            import skops.io

            return skops.io.load(folder / "model.skops").predict(values)
        case "xgboost":
            import xgboost

            return xgboost.Booster(model_file=folder / "model.json").predict(
                xgboost.DMatrix(values)
            )
        case "lightgbm":
            import lightgbm

            return lightgbm.Booster(model_file=folder / "model.txt").predict(values)
    import onnxruntime

    session = onnxruntime.InferenceSession(folder / "model.onnx")
    return session.run(["scores"], {"features": values})[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", TABULAR)
def test_v1_and_v2_answer_as_the_library(name: str, folders: dict[str, Path]) -> None:
    model = load(folders[name])
    expected = _expected(name, folders[name], ROWS)
    np.testing.assert_allclose(model.v1(ROWS), expected, rtol=1e-6)
    (output,) = model.v2([numeric_tensor("any", np.asarray(ROWS, np.float32))])
    assert output.name == "output-0"
    np.testing.assert_allclose(output.data, expected, rtol=1e-6)


@pytest.mark.parametrize("name", TABULAR)
def test_a_whole_table_is_one_request(name: str, folders: dict[str, Path]) -> None:
    rows = np.random.default_rng(0).random((5000, 4)).round(3).tolist()
    expected = _expected(name, folders[name], rows)
    np.testing.assert_allclose(load(folders[name]).v1(rows), expected, rtol=1e-6)


def test_a_table_has_a_limit() -> None:
    with pytest.raises(InvalidRequest, match="1 to 262144 items, held 262145"):
        instance_tensors([[1.0]] * 262_145)


def test_xgboost_in_its_binary_form(folders: dict[str, Path], tmp_path: Path) -> None:
    import xgboost

    booster = xgboost.Booster(model_file=folders["xgboost"] / "model.json")
    booster.save_model(tmp_path / "model.ubj")
    (tmp_path / "model.ubj").rename(tmp_path / "model.bst")
    assert load(tmp_path).v1(ROWS) == load(folders["xgboost"]).v1(ROWS)


@pytest.mark.parametrize(("library", "name"), [("xgboost", "model.xgb"), ("lightgbm", "model.lgb")])
def test_boosters_under_the_names_that_mlflow_gives_them(
    library: str, name: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    (source,) = folders[library].iterdir()
    (tmp_path / name).write_bytes(source.read_bytes())
    check_format(library, tmp_path)
    assert load(tmp_path).v1(ROWS) == load(folders[library]).v1(ROWS)


def test_onnx_answers_as_onnxruntime_and_batches(folders: dict[str, Path]) -> None:
    model = load(folders["onnx"])
    expected = _expected("onnx", folders["onnx"], ROWS)
    label, scores = model.v2([numeric_tensor("features", np.asarray(ROWS, np.float32))])
    assert label.datatype == "INT64"
    np.testing.assert_allclose(scores.data, expected, rtol=1e-6)
    assert [row["label"] for row in model.v1(ROWS)] == label.data.tolist()
    assert model.network.are_rows_independent
    assert model.processor.input_types() == [
        {"name": "features", "datatype": "FP32", "shape": [-1, 4]}
    ]


@pytest.mark.parametrize("name", [*TABULAR, "onnx"])
@pytest.mark.parametrize(
    "instances",
    [
        pytest.param([[1.0, 2.0, 3.0]], id="too few features"),
        pytest.param([[1.0] * 5], id="too many features"),
        pytest.param([["a", "b", "c", "d"]], id="texts"),
        pytest.param([[1.0, 2.0, 3.0, "4"]], id="a text among numbers"),
        pytest.param([[1.0] * 4, [1.0] * 3], id="rows of different lengths"),
        pytest.param([[]], id="empty row"),
        pytest.param([], id="no rows"),
        pytest.param([1.0], id="numbers without rows"),
        pytest.param([[[1.0] * 4]], id="one list too deep"),
        pytest.param([[10**400] * 4], id="too many digits"),
        pytest.param([{"a": 1.0}], id="missing columns"),
        pytest.param([{str(i): 1.0 for i in range(5)}], id="extra columns"),
        pytest.param([{}], id="no columns"),
    ],
)
def test_bad_rows_are_refused(name: str, instances: list[Any], folders: dict[str, Path]) -> None:
    with pytest.raises(InvalidRequest):
        load(folders[name]).v1(instances)


def test_columns_by_name_in_any_order(folders: dict[str, Path]) -> None:
    model = load(folders["lightgbm"])
    named = [{f"Column_{index}": row[index] for index in reversed(range(len(row)))} for row in ROWS]
    assert model.v1(named) == model.v1(ROWS)
    lists = [{name: [row[name] for row in named] for name in named[0]}]
    assert model.v1(lists) == model.v1(ROWS)
    assert model.v1([named]) == model.v1(ROWS)


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_missing_values_are_the_librarys_matter(name: str, folders: dict[str, Path]) -> None:
    model = load(folders[name])
    with_nan = [[6.8, float("nan"), 4.8, 1.4]]
    expected = _expected(name, folders[name], with_nan)
    np.testing.assert_allclose(model.v1([[6.8, None, 4.8, 1.4]]), expected, rtol=1e-6)


def test_a_model_that_takes_no_nan_says_so(folders: dict[str, Path]) -> None:
    with pytest.raises(InvalidRequest, match="NaN"):
        load(folders["sklearn"]).v1([[6.8, None, 4.8, 1.4]])


def test_infinity_is_refused_by_name(folders: dict[str, Path]) -> None:
    rows = np.asarray([[np.inf, 1, 1, 1]], np.float32)
    with pytest.raises(InvalidRequest, match="infinite"):
        load(folders["xgboost"]).v2([numeric_tensor("x", rows)])


def test_probabilities_of_scikit_learn_by_task(folders: dict[str, Path]) -> None:
    found = load(folders["sklearn"], Task.TABULAR_CLASSIFICATION).v1(ROWS)
    np.testing.assert_allclose(np.sum(found, axis=1), 1.0)
    assert np.argmax(found, axis=1).tolist() == load(folders["sklearn"]).v1(ROWS)


def test_another_task_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(ModelInvalid, match="tabular-classification"):
        load(folders["sklearn"], Task.TEXT_GENERATION)


def test_texts_and_several_outputs_of_scikit_learn(tmp_path: Path) -> None:
    import skops.io
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LinearRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import Normalizer

    texts = ["good film", "bad film"]
    pipeline = make_pipeline(CountVectorizer(), Normalizer(), LinearRegression())
    pipeline.fit(texts, [[1.0, 0.0], [0.0, 1.0]])
    skops.io.dump(pipeline, tmp_path / "model.skops")
    model = load(tmp_path)
    np.testing.assert_allclose(model.v1(texts), [[1, 0], [0, 1]], atol=1e-9)
    (output,) = model.v2([bytes_tensor("text", [text.encode() for text in texts])])
    assert output.shape == (2, 2)


def test_text_classes_are_strings(tmp_path: Path) -> None:
    import skops.io
    from sklearn.tree import DecisionTreeClassifier

    features, classes = iris()
    names = np.asarray(["setosa", "versicolor", "virginica"])[classes]
    skops.io.dump(DecisionTreeClassifier().fit(features, names), tmp_path / "flowers.skops")
    model = load(tmp_path)
    (output,) = model.v2([numeric_tensor("x", features[:1])])
    assert (output.datatype, output.data.tolist()) == ("BYTES", [b"setosa"])
    assert model.v1(features[:1].tolist()) == ["setosa"]


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes(255 - byte for byte in content[middle : middle + 64])


@pytest.mark.parametrize("name", [*TABULAR, "onnx"])
@pytest.mark.parametrize(
    "damage", [_cut, _flipped, lambda _: b"", lambda _: b"{}", lambda _: b"tree\n"]
)
def test_damaged_files_are_refused(
    name: str, damage: Callable[[bytes], bytes], folders: dict[str, Path], tmp_path: Path
) -> None:
    (path,) = folders[name].iterdir()
    (tmp_path / path.name).write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelInvalid):
        load(tmp_path)


def _edit_tree(document: Any, **changes: Any) -> None:
    trees = document["learner"]["gradient_booster"]["model"]["trees"]
    tree = next(each for each in trees if len(each["left_children"]) > 1)
    for name, value in changes.items():
        tree[name][0] = value


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"left_children": 9999}, id="child that is not there"),
        pytest.param({"left_children": 0}, id="circle"),
        pytest.param({"left_children": -99}, id="child with another negative number"),
        pytest.param({"split_indices": 4}, id="feature that is not there"),
    ],
)
def test_hostile_trees_of_xgboost_are_refused(
    changes: dict[str, Any], folders: dict[str, Path], tmp_path: Path
) -> None:
    document = json.loads((folders["xgboost"] / "model.json").read_text())
    _edit_tree(document, **changes)
    (tmp_path / "model.json").write_text(json.dumps(document))
    with pytest.raises(ModelInvalid):
        load(tmp_path)


def test_xgboost_with_more_classes_than_memory_is_refused(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    document = json.loads((folders["xgboost"] / "model.json").read_text())
    document["learner"]["learner_model_param"]["num_class"] = "100000000"
    (tmp_path / "model.json").write_text(json.dumps(document))
    with pytest.raises(ModelInvalid, match="100000000 groups"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("\nnum_class=", "\nnum_class=9", id="classes without room"),
        pytest.param("tree_per_iteration=", "tree_per_iteration=9", id="trees without room"),
        pytest.param("left_child=", "left_child=9999 ", id="child that is not there"),
        pytest.param("split_feature=", "split_feature=77 ", id="feature that is not there"),
        pytest.param("num_leaves=", "num_leaves=1", id="leaves that are not there"),
        pytest.param("max_feature_idx=3", "max_feature_idx=-2", id="no features"),
        pytest.param("\nend of parameters\n", "\n", id="parameters without an end"),
    ],
)
def test_hostile_trees_of_lightgbm_are_refused(
    old: str, new: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    text = (folders["lightgbm"] / "model.txt").read_text()
    (tmp_path / "model.txt").write_text(text.replace(old, new, 1))
    with pytest.raises(ModelInvalid):
        load(tmp_path)


def test_types_that_skops_does_not_trust_are_refused(tmp_path: Path) -> None:
    import skops.io
    from sklearn.preprocessing import FunctionTransformer

    skops.io.dump(FunctionTransformer(_cut), tmp_path / "model.skops")
    with pytest.raises(ModelInvalid, match=r"[Uu]ntrusted"):
        load(tmp_path)


def test_tensors_of_onnx_in_files_beside_it(tmp_path: Path) -> None:
    path = _with_external_data(tmp_path, "weights.bin")
    model = load(tmp_path, extra=[tmp_path / "weights.bin"])
    (output,) = model.v2([numeric_tensor("x", np.ones((2, 4), np.float32))])
    assert output.data.tolist() == [[4.0], [4.0]]
    assert path.exists()


def test_tensors_of_onnx_outside_its_folder_are_refused(tmp_path: Path) -> None:
    inner = tmp_path / "model"
    inner.mkdir()
    _with_external_data(inner, "weights.bin")
    content = (inner / "model.onnx").read_bytes()
    (inner / "model.onnx").write_bytes(content.replace(b"weights.bin", b"../ghts.bin"))
    (tmp_path / "ghts.bin").write_bytes(bytes(4096))
    with pytest.raises(ModelInvalid, match="own folder"):
        load(inner)


def test_inner_graphs_of_onnx_read_no_file_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    def info(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4])

    def branch(name: str) -> onnx.GraphProto:
        secret = TensorProto(name="s", data_type=TensorProto.FLOAT, dims=[1, 4])
        secret.data_location = TensorProto.EXTERNAL
        secret.external_data.add(key="location", value="secret.bin")
        add = helper.make_node("Add", ["x", "s"], [name])
        return helper.make_graph([add], name, [], [info(name)], [secret])

    condition = numpy_helper.from_array(np.array(True), "c")
    choose = helper.make_node("If", ["c"], ["y"], then_branch=branch("a"), else_branch=branch("b"))
    x, y = ((name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    model, work = tmp_path / "model", tmp_path / "work"
    model.mkdir()
    work.mkdir()
    onnx.save(onnx_model([choose], [x], [y], [condition]), model / "model.onnx")
    (work / "secret.bin").write_bytes(bytes(16))
    monkeypatch.chdir(work)
    with pytest.raises(ModelInvalid, match=r"secret\.bin"):
        load(model)


def test_unknown_operators_of_onnx_are_refused(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    x, y = ((name, TensorProto.FLOAT, [None, 1]) for name in "xy")
    evil = helper.make_node("Evil", ["x"], ["y"], domain="own")
    onnx.save(onnx_model([evil], [x], [y]), tmp_path / "model.onnx")
    with pytest.raises(ModelInvalid, match="own:Evil"):
        load(tmp_path)


def _with_external_data(folder: Path, name: str) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.ones((4, 1), np.float32), "w")
    inputs, outputs = [("x", TensorProto.FLOAT, ["n", 4])], [("y", TensorProto.FLOAT, ["n", 1])]
    model = onnx_model([helper.make_node("MatMul", ["x", "w"], ["y"])], inputs, outputs, [weights])
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location=name, size_threshold=0)
    return path


def test_a_tensor_that_onnx_does_not_name_is_refused(folders: dict[str, Path]) -> None:
    with pytest.raises(InvalidRequest, match="features"):
        load(folders["onnx"]).v2([Tensor("x", "FP32", np.zeros((1, 4), np.float32))])
