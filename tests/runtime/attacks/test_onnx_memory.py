"""Small ONNX files that would take gigabytes or minutes at their load or first inference."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from runtime.engines.libraries.onnx_file import (
    INLINED_NODES,
    MAX_DEPTH,
    folding_limit,
    load_allowance,
)
from runtime.errors import ModelInvalid
from tests.runtime.engines.libraries.loaded import load, onnx_model

pytestmark = pytest.mark.slow

MIB = 1024**2
BYTES = 4_000_000_000
"""What most of these ask for: twice the budget of a pod."""
ITEMS = BYTES // 4
MAX_GROWTH_BYTES = 150 * MIB
MAX_CPU_S = 30.0
ADDED = [
    helper.make_node("ReduceSum", ["big"], ["sum"], keepdims=0),
    helper.make_node("Cast", ["sum"], ["number"], to=TensorProto.FLOAT),
    helper.make_node("Add", ["x", "number"], ["y"]),
]
"""The sum of `big` is added to the input."""


def _constant(name: str, values: Any, dtype: Any = np.int64) -> Any:
    return numpy_helper.from_array(np.array(values, dtype), name)


def _ints(**values: Any) -> list[Any]:
    return [_constant(name, value) for name, value in values.items()]


def _model(
    nodes: Sequence[Any], constants: Sequence[Any] = (), functions: Sequence[Any] = ()
) -> Any:
    inputs, outputs = [("x", TensorProto.FLOAT, ["n", 4])], [("y", TensorProto.FLOAT, ["n", "m"])]
    return onnx_model(nodes, inputs, outputs, constants, functions=list(functions))


def _big(operator: str, inputs: Sequence[str], constants: Sequence[Any], **attributes: Any) -> Any:
    return _model([helper.make_node(operator, inputs, ["big"], **attributes), *ADDED], constants)


def _shape_that_is_computed() -> Any:
    nodes = [
        helper.make_node("Mul", ["a", "b"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["big"]),
    ]
    return _model([*nodes, *ADDED], _ints(a=[2**15], b=[ITEMS // 2**15]))


def _shape_of_the_request() -> Any:
    nodes = [
        helper.make_node("Size", ["x"], ["size"]),
        helper.make_node("Mul", ["size", "times"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["big"]),
    ]
    return _model([*nodes, *ADDED], _ints(times=[ITEMS]))


def _outer_product() -> Any:
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["r"]),
        helper.make_node("Concat", ["r"] * 128, ["c"], axis=0),
        helper.make_node("Concat", ["c"] * 128, ["d"], axis=0),
        helper.make_node("Unsqueeze", ["d", "zero"], ["row"]),
        helper.make_node("Unsqueeze", ["d", "one"], ["column"]),
        helper.make_node("Mul", ["row", "column"], ["big"]),
    ]
    return _model([*nodes, *ADDED], _ints(flat=[-1], zero=[0], one=[1]))


def _resized() -> Any:
    nodes = [
        helper.make_node("Unsqueeze", ["x", "axis"], ["x3"]),
        helper.make_node("Resize", ["x3", "", "scales"], ["big"]),
    ]
    scales = _constant("scales", [1.0, 1.0, ITEMS / 4], np.float32)
    return _model([*nodes, *ADDED], [*_ints(axis=[0]), scales])


def _doubling_loop() -> Any:
    ports = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("v", TensorProto.FLOAT, [None]),
    ]
    body = helper.make_graph(
        [
            helper.make_node("Concat", ["v", "v"], ["v2"], axis=0),
            helper.make_node("Identity", ["go"], ["go2"]),
        ],
        "body",
        ports,
        [
            helper.make_tensor_value_info("go2", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v2", TensorProto.FLOAT, [None]),
        ],
    )
    nodes = [
        helper.make_node("Reshape", ["x", "flat"], ["r"]),
        helper.make_node("Loop", ["times", "yes", "r"], ["big"], name="doubling", body=body),
    ]
    constants = [*_ints(flat=[-1], times=40), _constant("yes", True, np.bool_)]
    return _model([*nodes, *ADDED], constants)


@pytest.fixture
def load_measured(tmp_path: Path) -> Callable[[Any], None]:
    """Loads a model as a pod does, first inference included; fails if that takes much."""

    def attempt(model: Any) -> None:
        (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
        Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
        before, began_s = _peak_bytes(), time.process_time()
        try:
            load(tmp_path)
        finally:
            assert _peak_bytes() - before < MAX_GROWTH_BYTES
            assert time.process_time() - began_s < MAX_CPU_S

    return attempt


def _peak_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize(
    ("make", "node"),
    [
        pytest.param(
            lambda: _big("ConstantOfShape", ["s"], _ints(s=[ITEMS]), name="filled"),
            r"'filled' \(ConstantOfShape\)",
            id="constant of a shape",
        ),
        pytest.param(_shape_that_is_computed, "ConstantOfShape", id="computed shape"),
        pytest.param(_shape_of_the_request, "ConstantOfShape", id="shape of the request"),
        pytest.param(lambda: _big("Expand", ["s", "s"], _ints(s=[ITEMS])), "Expand", id="expand"),
        pytest.param(lambda: _big("Tile", ["s", "s"], _ints(s=[ITEMS // 4])), "Tile", id="tile"),
        pytest.param(
            lambda: _big("Range", ["a", "b", "d"], _ints(a=0, b=ITEMS, d=1)), "Range", id="range"
        ),
        pytest.param(lambda: _big("Pad", ["x", "p"], _ints(p=[0, 0, 0, ITEMS])), "Pad", id="pad"),
        pytest.param(
            lambda: _big("OneHot", ["i", "d", "v"], _ints(i=[0], d=ITEMS, v=[0, 1])),
            "OneHot",
            id="one-hot",
        ),
        pytest.param(
            lambda: _big("RandomNormal", [], [], shape=[ITEMS]), "RandomNormal", id="random"
        ),
        pytest.param(_outer_product, "Mul", id="outer product"),
        pytest.param(_resized, "Resize", id="resize"),
    ],
)
def test_a_small_file_that_infers_gigabytes_is_not_loaded(
    make: Callable[[], Any], node: str, load_measured: Callable[[Any], None]
) -> None:
    with pytest.raises(ModelInvalid, match=rf"{node}.* asks for \d+ bytes"):
        load_measured(make())


def test_a_loop_that_doubles_a_tensor_is_not_loaded(tmp_path: Path) -> None:
    """It takes what an inference may take, and no more."""
    (tmp_path / "model.onnx").write_bytes(_doubling_loop().SerializeToString())
    with pytest.raises(ModelInvalid, match=r"Concat.* asks for"):
        load(tmp_path)


def test_memory_of_an_inference_that_was_too_large_is_free_for_the_next(
    tmp_path: Path, load_measured: Callable[[Any], None]
) -> None:
    for _ in range(3):
        with pytest.raises(ModelInvalid, match="asks for"):
            load_measured(_shape_of_the_request())
    sound = _model([helper.make_node("Abs", ["x"], ["y"])])
    load_measured(sound)


def test_many_constants_that_a_load_would_compute_stay_small(
    load_measured: Callable[[Any], None],
) -> None:
    """20 of 100 MB in 1.8 KB, computed at the load: 1.9 GB without a limit of each."""
    count = 20
    nodes = [helper.make_node("ArgMax", ["x"], ["row"], axis=1, keepdims=0)]
    for index in range(count):
        value = helper.make_tensor("v", TensorProto.FLOAT, [1], [float(index)])
        nodes += [
            helper.make_node("ConstantOfShape", ["shape"], [f"b{index}"], value=value),
            helper.make_node("Gather", [f"b{index}", "row"], [f"o{index}"]),
        ]
    nodes += [
        helper.make_node("Sum", [f"o{index}" for index in range(count)], ["sum"]),
        helper.make_node("Unsqueeze", ["sum", "one"], ["column"]),
        helper.make_node("Add", ["x", "column"], ["y"]),
    ]
    load_measured(_model(nodes, _ints(shape=[25_000_000], one=[1])))


def _sparse(items: int) -> Any:
    values = _constant("w", [1.0], np.float32)
    return helper.make_sparse_tensor(values, _constant("i", [0]), [items])


def test_a_sparse_initializer_of_gigabytes_is_not_loaded(
    load_measured: Callable[[Any], None],
) -> None:
    model = _model([helper.make_node("Identity", ["w"], ["big"]), *ADDED])
    model.graph.sparse_initializer.append(_sparse(ITEMS))
    with pytest.raises(ModelInvalid, match="sparse initializer 'w'"):
        load_measured(model)


def test_a_sparse_constant_of_gigabytes_is_not_loaded(load_measured: Callable[[Any], None]) -> None:
    with pytest.raises(ModelInvalid, match=r"node 'made' \(Constant\)"):
        load_measured(_big("Constant", [], [], name="made", sparse_value=_sparse(ITEMS)))


def test_a_small_sparse_tensor_is_loaded(load_measured: Callable[[Any], None]) -> None:
    load_measured(_big("Constant", [], [], sparse_value=_sparse(1000)))


def test_a_sparse_tensor_whose_message_is_split_is_not_loaded() -> None:
    """Readers of protobuf join both parts, so their shapes must not be looked at one by one."""
    content = _big("Constant", [], [], sparse_value=_sparse(8)).graph
    attribute = content.node[0].attribute[0]
    whole = attribute.SerializeToString()
    part = attribute.sparse_tensor.SerializeToString()
    twice = whole + b"\xb2\x01" + bytes([len(part)]) + part
    assert math.prod(onnx.AttributeProto.FromString(twice).sparse_tensor.dims) == 64
    node = b"\x22\x08Constant\x2a" + bytes([len(twice)]) + twice
    graph = b"\x0a" + bytes([len(node)]) + node
    model = b"\x3a" + bytes([len(graph)]) + graph
    assert len(onnx.ModelProto.FromString(model).graph.node) == 1
    with pytest.raises(ModelInvalid, match="twice in one place"):
        folding_limit(memoryview(model), load_allowance(len(model)))


def test_tensors_that_share_a_file_count_each(tmp_path: Path) -> None:
    weights = []
    for index in range(40):
        tensor = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=[2_500_000])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="data.bin")
        weights.append(tensor)
    names = [tensor.name for tensor in weights]
    model = _model([helper.make_node("Sum", names, ["big"]), *ADDED], weights)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    (tmp_path / "data.bin").write_bytes(bytes(10_000_000))
    with pytest.raises(ModelInvalid, match="initializer 'w10' has the shape"):
        load(tmp_path, extra=[tmp_path / "data.bin"])


def _function(name: str, nodes: Sequence[Any]) -> Any:
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], nodes, domains)


def _calls(operator: str, domain: str, times: int) -> list[Any]:
    names = ["a", *(f"t{index}" for index in range(times - 1)), "b"]
    return [
        helper.make_node(operator, [names[index]], [names[index + 1]], domain=domain)
        for index in range(times)
    ]


def _nested_functions(depth: int) -> Any:
    """Each calls the one below it eight times."""
    functions = [_function("f0", _calls("Abs", "", 1))]
    functions += [
        _function(f"f{index}", _calls(f"f{index - 1}", "own", 8)) for index in range(1, depth)
    ]
    return _model(
        [helper.make_node(f"f{depth - 1}", ["x"], ["y"], domain="own")], functions=functions
    )


def test_functions_that_become_millions_of_nodes_are_not_loaded(
    load_measured: Callable[[Any], None],
) -> None:
    """1.1 KB; onnxruntime's own limit ends it after 65 s."""
    with pytest.raises(ModelInvalid, match=rf"function own:f5 has .* allowed are {INLINED_NODES}"):
        load_measured(_nested_functions(7))


def test_calls_of_a_function_count_each(load_measured: Callable[[Any], None]) -> None:
    nodes = [helper.make_node("f4", ["x"], [f"y{index}"], domain="own") for index in range(5)]
    model = _nested_functions(5)
    model.graph.node.extend(nodes)
    with pytest.raises(ModelInvalid, match="calls of the model's functions become"):
        load_measured(model)


def test_functions_that_call_each_other_are_not_loaded() -> None:
    functions = [_function("f", _calls("g", "own", 1)), _function("g", _calls("f", "own", 1))]
    model = _model([helper.make_node("f", ["x"], ["y"], domain="own")], functions=functions)
    content = model.SerializeToString()
    with pytest.raises(ModelInvalid, match="in a circle"):
        folding_limit(memoryview(content), load_allowance(len(content)))


def test_a_model_with_functions_is_loaded(load_measured: Callable[[Any], None]) -> None:
    load_measured(_nested_functions(3))


def test_a_file_of_nothing_but_nodes_is_not_loaded(load_measured: Callable[[Any], None]) -> None:
    """Half a megabyte becomes 70 MB in onnxruntime."""
    count = 30_000
    names = ["x", *(f"{index:x}_" for index in range(count - 1)), "y"]
    nodes = [helper.make_node("Abs", [names[index]], [names[index + 1]]) for index in range(count)]
    with pytest.raises(ModelInvalid, match=r"one of \d+ nodes"):
        load_measured(_model(nodes))


def test_graphs_within_graphs_have_a_deepest_level() -> None:
    graph = helper.make_graph([], "inner", [], [])
    for _ in range(MAX_DEPTH + 1):
        node = helper.make_node("If", ["c"], [], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([node], "outer", [], [])
        graph.node[0].attribute.pop()  # one branch, or there are 2^32 of them
    content = onnx.ModelProto(graph=graph).SerializeToString()
    with pytest.raises(ModelInvalid, match="deep"):
        folding_limit(memoryview(content), load_allowance(len(content)))


def test_nodes_that_wait_for_a_request_are_not_counted() -> None:
    """So that a model's few large constants may still be computed at its load."""
    constants = _ints(a=[4])
    fixed = [helper.make_node("Neg", ["a"], ["b"]), helper.make_node("Shape", ["x"], ["c"])]
    names = ["x", *(f"{index}" for index in range(99)), "y"]
    waiting = [helper.make_node("Abs", [names[index]], [names[index + 1]]) for index in range(100)]
    content = memoryview(_model([*fixed, *waiting], constants).SerializeToString())
    assert folding_limit(content, 1000_000_000) == 500_000_000
