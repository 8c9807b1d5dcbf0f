"""Small models of KServe's other formats, trained here on the iris flowers in their own libraries.

Each format's libraries are imported when such a model is made.
"""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

FEATURES = 4
CLASSES = 3
OPSET = 17
ML_OPSET = 3
IR_VERSION = 9


def iris() -> tuple[Any, Any]:
    """Features, float32 [150, 4], and classes, int64 [150]."""
    from sklearn.datasets import load_iris

    data = load_iris()
    return data.data.astype(np.float32), data.target


def make_sklearn(folder: Path) -> Path:
    """A logistic regression in a skops file."""
    import skops.io
    from sklearn.linear_model import LogisticRegression

    skops.io.dump(LogisticRegression(max_iter=500).fit(*iris()), folder / "model.skops")
    return folder


def make_xgboost(folder: Path, name: str = "model.json", trees: int = 10) -> Path:
    """A booster with the probabilities of the classes."""
    import xgboost

    features, classes = iris()
    parameters = {"objective": "multi:softprob", "num_class": CLASSES, "max_depth": 3, "nthread": 1}
    booster = xgboost.train(parameters, xgboost.DMatrix(features, label=classes), trees)
    booster.save_model(folder / name)
    return folder


def make_lightgbm(folder: Path, name: str = "model.txt", trees: int = 10) -> Path:
    """A booster with the probabilities of the classes."""
    import lightgbm

    features, classes = iris()
    parameters = {"objective": "multiclass", "num_class": CLASSES, "verbose": -1, "num_threads": 1}
    booster = lightgbm.train(parameters, lightgbm.Dataset(features, label=classes), trees)
    booster.save_model(folder / name)
    return folder


def make_onnx(folder: Path) -> Path:
    """A logistic regression as ONNX: label and probabilities, of any number of rows."""
    import onnx
    from onnx import TensorProto, helper
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(max_iter=500).fit(*iris())
    classifier = helper.make_node(
        "LinearClassifier",
        ["features"],
        ["label", "scores"],
        domain="ai.onnx.ml",
        coefficients=model.coef_.ravel().tolist(),
        intercepts=model.intercept_.tolist(),
        classlabels_ints=[0, 1, 2],
        multi_class=1,
        post_transform="SOFTMAX",
    )
    graph = helper.make_graph(
        [classifier],
        "iris",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, [None, FEATURES])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, [None]),
            helper.make_tensor_value_info("scores", TensorProto.FLOAT, [None, CLASSES]),
        ],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    onnx.save(
        helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION), folder / "model.onnx"
    )
    return folder


MAKERS: Mapping[str, Callable[[Path], Path]] = {
    "sklearn": make_sklearn,
    "xgboost": make_xgboost,
    "lightgbm": make_lightgbm,
    "onnx": make_onnx,
}
"""By the name of the format in `modelFormat`."""


def make_all(root: Path) -> None:
    """One model of each format, in a folder of the format's name."""
    for name, make in MAKERS.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        make(folder)


if __name__ == "__main__":
    make_all(Path(sys.argv[1]))
