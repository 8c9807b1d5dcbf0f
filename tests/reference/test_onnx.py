"""ONNX models answer as onnxruntime does: scikit-learn's converted ones, types, and operators."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import skl2onnx
from onnx import helper
from sklearn import ensemble, linear_model, naive_bayes, neighbors, neural_network, svm, tree

from common.inference_protocol.tensors import DATATYPE_OF, Tensor, numeric_tensor, plain_values
from runtime.errors import ModelInvalid
from tests.reference.outcomes import Outcomes
from tests.runtime.engines.libraries.loaded import load
from tests.tabular_models import iris

pytestmark = [pytest.mark.reference, pytest.mark.filterwarnings("ignore")]
CONVERTED = {
    kind.__name__: kind
    for kind in (
        ensemble.RandomForestClassifier,
        ensemble.RandomForestRegressor,
        ensemble.GradientBoostingClassifier,
        ensemble.HistGradientBoostingRegressor,
        linear_model.LogisticRegression,
        linear_model.Ridge,
        naive_bayes.GaussianNB,
        neighbors.KNeighborsClassifier,
        neural_network.MLPClassifier,
        svm.SVC,
        svm.SVR,
        tree.DecisionTreeClassifier,
    )
}
ELEMENTWISE = ("Abs", "Ceil", "Erf", "Exp", "Floor", "Neg", "Relu", "Sigmoid", "Sqrt", "Tanh")
OPSETS = (9, 11, 13, 15, 17, 19, 21)


def _compare(folder: Path, *inputs: Tensor) -> None:
    session = onnxruntime.InferenceSession(
        folder / "model.onnx", providers=["CPUExecutionProvider"]
    )
    expected = session.run(None, {each.name: plain_values(each) for each in inputs})
    outputs = load(folder).v2(inputs)
    assert [each.name for each in outputs] == [each.name for each in session.get_outputs()]
    for output, values in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(plain_values(output), values)


def _converted(model: Any, folder: Path, **options: Any) -> None:
    rows = iris()[0][:1].astype(np.float32)
    made = skl2onnx.to_onnx(model, rows, **options)
    (folder / "model.onnx").write_bytes(made.SerializeToString())


@pytest.mark.parametrize("name", CONVERTED)
def test_converted(name: str, outcomes: Outcomes, tmp_path: Path) -> None:
    with outcomes.judge("ONNX of scikit-learn", name):
        model = CONVERTED[name]().fit(*iris())
        is_classifier = hasattr(model, "classes_")
        _converted(model, tmp_path, **({"options": {"zipmap": False}} if is_classifier else {}))
        _compare(tmp_path, numeric_tensor("X", iris()[0][::17].astype(np.float32)))


def test_maps(outcomes: Outcomes, tmp_path: Path) -> None:
    with outcomes.judge("ONNX of scikit-learn", "ZipMap") as outcome:
        _converted(linear_model.LogisticRegression().fit(*iris()), tmp_path)
        with pytest.raises(ModelInvalid, match="zipmap") as refused:
            load(tmp_path)
        outcome.refuse(str(refused.value))


def _operator(folder: Path, name: str, kind: int, opset: int) -> None:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node(name, ["x"], ["y"])],
        "g",
        [value("x", kind, ["n", 3])],
        [value("y", kind, None)],
    )
    opsets = [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / "model.onnx")


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_operators_of_all_opsets(name: str, outcomes: Outcomes, tmp_path: Path) -> None:
    values = np.abs(np.random.RandomState(0).normal(size=(4, 3))).astype(np.float32)
    with outcomes.judge("ONNX operators", name):
        for opset in OPSETS:
            folder = tmp_path / str(opset)
            folder.mkdir()
            _operator(folder, name, onnx.TensorProto.FLOAT, opset)
            _compare(folder, numeric_tensor("x", values))


@pytest.mark.parametrize("datatype", [*DATATYPE_OF.values(), "BYTES"])
def test_types(datatype: str, outcomes: Outcomes, tmp_path: Path) -> None:
    with outcomes.judge("ONNX types", datatype):
        dtype = {name: each for each, name in DATATYPE_OF.items()}.get(datatype)
        kind = onnx.TensorProto.STRING if dtype is None else helper.np_dtype_to_tensor_dtype(dtype)
        _operator(tmp_path, "Identity", kind, 17)
        values = np.asarray([[0, 1, 1]], dtype)
        if dtype is None:
            values = np.asarray([[b"a", "ü".encode(), b""]], dtype=object)
        _compare(tmp_path, Tensor("x", datatype, values))
