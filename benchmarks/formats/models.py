"""Makes a model for a server: iris as a pickle, a skops file or boosters; a network of images.

`python benchmarks/formats/models.py KIND FOLDER`, by the interpreter of the server that will read
it: pickles are read by the version of scikit-learn that wrote them. Imports no module of ours.
"""

import sys
from pathlib import Path

TREES = 100
PIXELS = 224
BOTTLENECKS = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
    (6, 320, 1, 1),
)  # fmt: skip
"""Expansion, channels, repeats and first stride of each row of the paper's table."""


def make_pickle(path: Path) -> None:
    import joblib
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    joblib.dump(LogisticRegression(max_iter=500).fit(*load_iris(return_X_y=True)), path)


def make_skops(path: Path) -> None:
    import skops.io
    from sklearn.datasets import load_iris
    from sklearn.linear_model import LogisticRegression

    skops.io.dump(LogisticRegression(max_iter=500).fit(*load_iris(return_X_y=True)), path)


def make_booster(path: Path) -> None:
    """100 rounds of one tree per class."""
    import xgboost
    from sklearn.datasets import load_iris

    features, classes = load_iris(return_X_y=True)
    parameters = {"objective": "multi:softprob", "num_class": 3, "max_depth": 3, "nthread": 1}
    xgboost.train(parameters, xgboost.DMatrix(features, label=classes), TREES).save_model(path)


def make_lightgbm(path: Path) -> None:
    """100 rounds of one tree per class."""
    import lightgbm
    from sklearn.datasets import load_iris

    features, classes = load_iris(return_X_y=True)
    parameters = {
        "objective": "multiclass",
        "num_class": 3,
        "max_depth": 3,
        "num_threads": 1,
        "verbose": -1,
    }
    data = lightgbm.Dataset(features, label=classes)
    lightgbm.train(parameters, data, TREES).save_model(str(path))


def make_mobilenet(path: Path) -> None:
    """MobileNetV2 (Sandler 2018, table 2) with random weights, normalisation folded into them."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def layer(
        inputs: str, shape: tuple[int, ...], *, stride: int = 1, groups: int = 1, clip: bool = True
    ) -> str:
        """A convolution with weights [out, in / groups, k, k], and ReLU6; its output's name."""
        name = f"c{len(weights)}"
        scale = (2 / np.prod(shape[1:])) ** 0.5
        for suffix, values in (("w", rng.normal(0, scale, shape)), ("b", np.zeros(shape[0]))):
            weights.append(numpy_helper.from_array(values.astype(np.float32), f"{name}{suffix}"))
        padding = [(shape[2] - 1) // 2] * 4
        made = helper.make_node(
            "Conv",
            [inputs, f"{name}w", f"{name}b"],
            [name],
            group=groups,
            strides=[stride] * 2,
            pads=padding,
        )
        nodes.append(made)
        if not clip:
            return name
        nodes.append(helper.make_node("Clip", [name, "low", "high"], [f"{name}r"]))
        return f"{name}r"

    for name, value in (("low", 0.0), ("high", 6.0)):
        weights.append(numpy_helper.from_array(np.float32(value), name))
    current, width = layer("x", (32, 3, 3, 3), stride=2), 32
    for expansion, channels, repeats, first_stride in BOTTLENECKS:
        for index in range(repeats):
            stride, inner = (first_stride if index == 0 else 1), width * expansion
            before = current
            if expansion > 1:
                current = layer(current, (inner, width, 1, 1))
            current = layer(current, (inner, 1, 3, 3), stride=stride, groups=inner)
            current = layer(current, (channels, inner, 1, 1), clip=False)
            if stride == 1 and width == channels:
                nodes.append(helper.make_node("Add", [before, current], [f"{current}s"]))
                current = f"{current}s"
            width = channels
    current = layer(current, (1280, width, 1, 1))
    nodes += [
        helper.make_node("GlobalAveragePool", [current], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Gemm", ["flat", "gw"], ["y"]),
    ]
    classes = rng.normal(0, 0.03, (1280, 1000)).astype(np.float32)
    weights.append(numpy_helper.from_array(classes, "gw"))
    ports = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, PIXELS, PIXELS]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1000]),
    ]
    graph = helper.make_graph(nodes, "mobilenet", ports[:1], ports[1:], weights)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=9), str(path))


MAKERS = {
    "pickle": make_pickle,
    "skops": make_skops,
    "booster": make_booster,
    "lightgbm": make_lightgbm,
    "mobilenet": make_mobilenet,
}

if __name__ == "__main__":
    MAKERS[sys.argv[1]](Path(sys.argv[2]))
