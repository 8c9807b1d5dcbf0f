"""Files made to do harm, of every format: each is refused by its check, in one kind of error.

Bytes and documents are made by hypothesis, on top of the random changes of `test_fuzzed_files`.
"""

import io
import json
import re
import struct
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.engines.libraries.boosters import MAX_DEPTH, check_lightgbm, check_xgboost, read_ubjson
from runtime.engines.libraries.onnx_engine import check_location, onnx_signature
from runtime.errors import LoadFailed, ModelInvalid
from tests.runtime.engines.libraries.loaded import load, onnx_model
from tests.tabular_models import MAKERS, make_xgboost

pytestmark = pytest.mark.slow

EXAMPLES = settings(max_examples=100, deadline=None)
FILES = {
    "onnx": "model.onnx",
    "xgboost": "model.json",
    "lightgbm": "model.txt",
    "sklearn": "model.skops",
}


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A sound file of each format."""
    return {
        name: (make(tmp_path_factory.mktemp(name)) / FILES[name]).read_bytes()
        for name, make in MAKERS.items()
    }


@pytest.fixture(scope="module")
def booster(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A sound file of XGBoost's UBJSON."""
    folder = make_xgboost(tmp_path_factory.mktemp("ubj"), "model.ubj", trees=1)
    return (folder / "model.ubj").read_bytes()


def _sound_or_invalid(check: Callable[[], object]) -> None:
    with suppress(ModelInvalid):
        check()


# Protobuf: number and kind of a field, then a number, a size that may lie, or bytes.
_fields = st.lists(
    st.tuples(
        st.integers(1, 15),
        st.sampled_from([0, 1, 2, 3, 5, 7]),
        st.integers(0, 2**63 - 1),
        st.binary(max_size=20),
    ),
    max_size=6,
)


def _protobuf(fields: list[tuple[int, int, int, bytes]], *, lies: bool) -> bytes:
    result = bytearray()
    for number, kind, value, payload in fields:
        result.append(number << 3 | kind)
        if kind == 2:
            result += _varint(value if lies else len(payload)) + payload
        else:
            result += _varint(value)
    return bytes(result)


def _varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    result.append(value)
    return bytes(result)


@EXAMPLES
@given(fields=_fields, inner=_fields, lies=st.booleans(), tail=st.binary(max_size=30))
def test_any_protobuf_is_no_model_of_onnx_or_has_a_signature(
    tmp_path_factory: pytest.TempPathFactory,
    fields: list[tuple[int, int, int, bytes]],
    inner: list[tuple[int, int, int, bytes]],
    lies: bool,
    tail: bytes,
) -> None:
    graph = _protobuf(fields, lies=lies) + _protobuf(
        [(5, 2, 0, _protobuf(inner, lies=lies))], lies=False
    )
    path = tmp_path_factory.getbasetemp() / "any.onnx"
    path.write_bytes(_protobuf([(7, 2, 0, graph)], lies=False) + tail)
    _sound_or_invalid(lambda: onnx_signature(path))


@EXAMPLES
@given(content=st.binary(max_size=200))
@pytest.mark.parametrize("first", [b"", b"{", b"[#L", b"[$d#L", b"{L\0\0\0\0\0\0\0\x07learner{"])
def test_any_bytes_are_no_booster(first: bytes, content: bytes) -> None:
    with pytest.raises(ModelInvalid):
        check_xgboost(first + content)
    _sound_or_invalid(lambda: read_ubjson(first + content))


_documents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@EXAMPLES
@given(data=st.data(), value=_documents)
def test_any_value_in_a_booster_is_refused_or_sound(
    contents: dict[str, bytes], data: st.DataObject, value: Any
) -> None:
    """One value anywhere in a sound document becomes another."""
    document = orjson.loads(contents["xgboost"])
    place = document["learner"]
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(min(len(place), 20))
        key = data.draw(st.sampled_from(keys))
        inner = place[key]
        if not (isinstance(inner, dict | list) and inner) or data.draw(st.integers(0, 7)) == 0:
            break
        place = inner
    place[key] = value
    content = orjson.dumps(document)
    _sound_or_invalid(lambda: check_xgboost(content))


@EXAMPLES
@given(data=st.data(), text=st.text(max_size=12))
def test_any_text_in_a_booster_of_lightgbm_is_refused_or_sound(
    contents: dict[str, bytes], data: st.DataObject, text: str
) -> None:
    whole = contents["lightgbm"].decode()
    begin = data.draw(st.integers(0, len(whole)))
    end = min(len(whole), begin + data.draw(st.integers(0, 30)))
    _sound_or_invalid(lambda: check_lightgbm(whole[:begin] + text + whole[end:]))


@pytest.mark.parametrize("content_of", FILES)
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_another_format_is_refused(
    name: str, content_of: str, contents: dict[str, bytes], tmp_path: Path
) -> None:
    if name == content_of or (name, content_of) == ("xgboost", "lightgbm"):
        return  # LightGBM's text is known by its beginning
    (tmp_path / FILES[name]).write_bytes(contents[content_of])
    with pytest.raises(LoadFailed):
        load(tmp_path)


def _ubj_text(text: bytes) -> bytes:
    return b"L" + struct.pack(">q", len(text)) + text


def test_a_name_that_is_twice_in_ubjson_is_refused(booster: bytes) -> None:
    """XGBoost takes the first of two, so the check must not look at the second alone."""
    check_xgboost(booster)
    at = booster.index(_ubj_text(b"num_feature"))
    hidden = _ubj_text(b"num_feature") + b"S" + _ubj_text(b"1")
    with pytest.raises(ModelInvalid, match=r"num_feature.*twice"):
        check_xgboost(booster[:at] + hidden + booster[at:])


def test_names_with_escapes_are_refused(contents: dict[str, bytes]) -> None:
    """XGBoost does not decode them, so a hidden list would stand beside the one it takes."""
    content = contents["xgboost"].replace(b'"trees":', b'"trees":[],"tr\\u0065es":', 1)
    with pytest.raises(ModelInvalid, match=r"\\u"):
        check_xgboost(content)


@pytest.mark.parametrize(
    ("field", "number"),
    [
        pytest.param("max_feature_idx=", "1_0", id="features"),
        pytest.param("num_class=", "1_0", id="classes"),
        pytest.param("left_child=", "1_0", id="child"),
        pytest.param("threshold=", "1_0.5", id="threshold"),
        pytest.param("left_child=", "1\t", id="tabulator"),
        pytest.param("left_child=", "1\x0c", id="page"),
        pytest.param("num_leaves=", "٣", id="digit of another script"),
    ],
)
def test_numbers_that_python_and_lightgbm_read_differently_are_refused(
    field: str, number: str, contents: dict[str, bytes]
) -> None:
    head, _, rest = contents["lightgbm"].decode().partition(f"\n{field}")
    separator = " " if field in ("left_child=", "threshold=") else "\n"
    _, found, tail = rest.partition(separator)
    text = _with_sizes(f"{head}\n{field}{number}{found}{tail}")
    with pytest.raises(ModelInvalid, match=r"no whole number|numbers with|characters other"):
        check_lightgbm(text)


def _with_sizes(text: str) -> str:
    """The head names where the changed trees are."""
    starts = [found.start() for found in re.finditer("^Tree=", text, re.MULTILINE)]
    ends = [*starts[1:], text.index("end of trees")]
    sizes = " ".join(str(end - start) for start, end in zip(starts, ends, strict=True))
    return re.sub("^tree_sizes=.*$", f"tree_sizes={sizes}", text, flags=re.MULTILINE)


def test_changed_sizes_are_no_reason_of_their_own(contents: dict[str, bytes]) -> None:
    check_lightgbm(_with_sizes(contents["lightgbm"].decode()))


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(b'{"a":' * 100_000, id="objects"),
        pytest.param(b'{"a":' + b"[" * 100_000, id="arrays"),
        pytest.param(b'{"learner":{"x":' + b"9" * 1_000_000 + b"}}", id="digits"),
        pytest.param(b'{"learner":' + b'{"a":[' * 500 + b"]}" * 500 + b"}", id="closed"),
        pytest.param((b"{" + _ubj_text(b"a")) * 100_000, id="UBJSON, objects"),
        pytest.param(b"{" + _ubj_text(b"a") + b"[" * 100_000, id="UBJSON, arrays"),
        pytest.param(
            b"{" + _ubj_text(b"a") + b"[#L" + struct.pack(">q", 2**62) + b"Z", id="UBJSON, count"
        ),
        pytest.param(
            b"{" + _ubj_text(b"a") + b"[$D#L" + struct.pack(">q", 2**62), id="UBJSON, typed count"
        ),
        pytest.param(b"{L" + struct.pack(">q", -1), id="UBJSON, negative size"),
    ],
)
def test_bombs_of_xgboost_end_soon(bomb: bytes) -> None:
    with pytest.raises(ModelInvalid):
        check_xgboost(bomb)


def test_ubjson_has_a_deepest_level() -> None:
    deep = b"[" * (MAX_DEPTH + 2) + b"]" * (MAX_DEPTH + 2)
    with pytest.raises(ModelInvalid, match="levels"):
        read_ubjson(deep)


@pytest.mark.parametrize("name", ["num_feature", "num_class", "num_target"])
@pytest.mark.parametrize("value", ["-1", str(2**31), "9" * 400, "1e9", ""])
def test_boosters_of_sizes_that_lie_are_refused(
    name: str, value: str, contents: dict[str, bytes]
) -> None:
    document = orjson.loads(contents["xgboost"])
    document["learner"]["learner_model_param"][name] = value
    if name != "num_feature" and value == "-1":
        return  # as none
    with pytest.raises(ModelInvalid):
        check_xgboost(orjson.dumps(document))


def test_an_initializer_of_onnx_that_lies_of_its_size_is_refused(tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2**40, 2**20])
    weights.raw_data = b"\0" * 16
    path = _onnx(tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], weights)
    assert onnx.load(path).graph.initializer
    with pytest.raises(ModelInvalid):
        load(tmp_path)


@pytest.mark.parametrize("offset", ["-8", str(2**40), str(2**64)])
def test_a_tensor_beyond_the_end_of_its_file_is_refused(offset: str, tmp_path: Path) -> None:
    from onnx import TensorProto, helper

    weights = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 1])
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", offset), ("length", "16")):
        weights.external_data.add(key=key, value=value)
    (tmp_path / "weights.bin").write_bytes(bytes(16))
    _onnx(tmp_path, [helper.make_node("MatMul", ["x", "w"], ["y"])], weights)
    with pytest.raises(ModelInvalid):
        load(tmp_path, extra=[tmp_path / "weights.bin"])


def test_inner_graphs_of_onnx_without_end_are_refused(tmp_path: Path) -> None:
    """Nested deeper than protobuf reads, in the file's bytes: the library cannot make it."""
    graph = b""
    for _ in range(3000):
        attribute = b"\x32" + _varint(len(graph)) + graph  # NodeProto.attribute.g
        node = b"\x2a" + _varint(len(attribute)) + attribute
        graph = b"\x0a" + _varint(len(node)) + node
    port = b"\x0a\x01x\x12\x06\x0a\x04\x08\x01\x12\x00"
    ports = b"".join(tag + _varint(len(port)) + port for tag in (b"\x5a", b"\x62"))
    whole = graph + ports
    (tmp_path / "model.onnx").write_bytes(b"\x08\x09\x3a" + _varint(len(whole)) + whole)
    with pytest.raises(ModelInvalid):
        load(tmp_path)


def _onnx(folder: Path, nodes: list[Any], weights: Any) -> Path:
    from onnx import TensorProto

    inputs, outputs = [("x", TensorProto.FLOAT, ["n", 4])], [("y", TensorProto.FLOAT, ["n", 1])]
    path = folder / "model.onnx"
    path.write_bytes(onnx_model(nodes, inputs, outputs, [weights]).SerializeToString())
    return path


@pytest.mark.parametrize(
    "location", ["", "/etc/passwd", "../x", "a/../../x", "..", "a\\..\\x", "//host/x", "./../x"]
)
def test_paths_of_onnx_that_leave_the_folder_are_refused(location: str) -> None:
    with pytest.raises(ModelInvalid, match="own folder"):
        check_location(location)


def _archive(content: bytes, change: Callable[[str, bytes], bytes]) -> bytes:
    """A skops file with changed members."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(file, "w") as after:
        for name in before.namelist():
            after.writestr(name, change(name, before.read(name)))
    return file.getvalue()


def test_an_array_of_skops_that_lies_of_its_size_is_refused(
    contents: dict[str, bytes], tmp_path: Path
) -> None:
    def lying(name: str, data: bytes) -> bytes:
        if not name.endswith(".npy"):
            return data
        file = io.BytesIO()
        header = {"descr": "<f8", "fortran_order": False, "shape": (10**14,)}
        np.lib.format.write_array_header_1_0(file, header)
        return file.getvalue() + data[128:]

    (tmp_path / "model.skops").write_bytes(_archive(contents["sklearn"], lying))
    with pytest.raises(ModelInvalid, match="more memory"):
        load(tmp_path)


def test_a_schema_of_skops_that_is_nested_without_end_is_refused(
    contents: dict[str, bytes], tmp_path: Path
) -> None:
    def nested(name: str, data: bytes) -> bytes:
        if name != "schema.json":
            return data
        schema = json.dumps(json.loads(data) | {"content": 1})
        return schema.replace('"content": 1', '"content": ' + "[" * 50_000 + "]" * 50_000).encode()

    (tmp_path / "model.skops").write_bytes(_archive(contents["sklearn"], nested))
    with pytest.raises(ModelInvalid):
        load(tmp_path)
