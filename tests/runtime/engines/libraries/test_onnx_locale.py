"""ONNX models that change the case of texts, on machines with few locales."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, GraphProto, TensorProto, helper, numpy_helper

from common.inference_protocol.tensors import bytes_tensor
from runtime.engines.libraries.onnx_engine import with_replaced_locale
from runtime.engines.libraries.onnx_file import encoded, fields, message, runs_of
from runtime.errors import ModelInvalid
from tests.runtime.engines.libraries.loaded import load, onnx_model

NUMBERS = runs_of(floats=7, integers=8, strings=9)
ALL_OF_A_LOCALE = 8127
"""LC_ALL_MASK of glibc."""


def _forest() -> bytes:
    content: bytes = AttributeProto(
        name="nodes",
        floats=[0.5, -1e30] * 1000,
        ints=[0, 1, 300, -1, 2**62] * 1000,
        strings=[b"BRANCH_LEQ", b"LEAF", b"", b"x" * 40] * 1000,
        g=GraphProto(name="inner"),
    ).SerializeToString()
    return content


def test_all_fields_but_numbers_and_short_strings_are_there() -> None:
    found = list(fields(memoryview(_forest()), NUMBERS))
    every = [each for each in fields(memoryview(_forest())) if each[0] not in {7, 8}]
    assert found == [each for each in every if each[0] != 9 or len(bytes(each[1])) == 40]


@pytest.mark.parametrize("cut", [1, 3])
def test_a_message_cut_short_within_numbers_is_refused(cut: int) -> None:
    content = AttributeProto(floats=[0.5] * 100).SerializeToString()[:-cut]
    with pytest.raises(ModelInvalid, match="cut short"):
        list(fields(memoryview(content), NUMBERS))


def test_an_encoded_field_is_read_back() -> None:
    content = b"x" * 300
    ((number, value),) = fields(memoryview(encoded(20, content)))
    assert (number, bytes(message(value))) == (20, content)


def _normalizer(**attributes: Any) -> onnx.NodeProto:
    return helper.make_node(
        "StringNormalizer", ["x"], ["y"], case_change_action="LOWER", **attributes
    )


def _info(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.STRING, ["n"])


def _model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    condition = numpy_helper.from_array(np.array(True), "c")
    x, y = ((name, TensorProto.STRING, ["n"]) for name in "xy")
    return onnx_model(nodes, [x], [y], [condition])


def _in_a_branch() -> onnx.NodeProto:
    node = helper.make_node("StringNormalizer", ["x"], ["a"], case_change_action="LOWER")
    same = helper.make_node("Identity", ["x"], ["b"])
    return helper.make_node(
        "If",
        ["c"],
        ["y"],
        then_branch=helper.make_graph([node], "a", [], [_info("a")]),
        else_branch=helper.make_graph([same], "b", [], [_info("b")]),
    )


@pytest.mark.parametrize(
    "node",
    [
        pytest.param(_normalizer(), id="no locale named"),
        pytest.param(_normalizer(locale="en_US.UTF-8"), id="the usual one"),
        pytest.param(_in_a_branch(), id="in an inner graph"),
    ],
)
def test_a_model_of_texts_needs_no_locale_installed(node: onnx.NodeProto, tmp_path: Path) -> None:
    onnx.save(_model(node), tmp_path / "model.onnx")
    texts = bytes_tensor("x", [each.encode() for each in ("Good", "ÄÖÜ ΣΩ", "Иван")])
    found = load(tmp_path).v2([texts])[0].data.tolist()
    assert [each.decode() for each in found] == ["good", "äöü σω", "иван"]


def test_only_the_locale_of_a_model_is_changed() -> None:
    changed = onnx.load_from_string(
        with_replaced_locale(memoryview(_model(_normalizer()).SerializeToString()))
    )
    assert changed == _model(_normalizer(locale="C.UTF-8"))
    other = _model(_normalizer(locale="tr_TR.UTF-8"))
    written = with_replaced_locale(memoryview(other.SerializeToString()))
    assert onnx.load_from_string(written) == other


def test_a_locale_with_another_case_of_letters_is_asked_for(tmp_path: Path) -> None:
    onnx.save(_model(_normalizer(locale="xx_XX.UTF-8")), tmp_path / "model.onnx")
    with pytest.raises(ModelInvalid, match=r"locale 'xx_XX.UTF-8', which this machine lacks;"):
        load(tmp_path)


@pytest.mark.slow
def test_the_replacement_has_the_same_case_of_all_letters(tmp_path: Path) -> None:
    made = subprocess.run(
        ["localedef", "-i", "en_US", "-f", "UTF-8", str(tmp_path / "en_US.UTF-8")],
        check=False,
        capture_output=True,
        text=True,
    )
    if made.returncode:
        pytest.skip(f"the machine cannot make the locale: {made.stderr[:200]}")
    script = f"""
import ctypes
c = ctypes.CDLL("libc.so.6")
c.newlocale.restype = ctypes.c_void_p
c.newlocale.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p]
one, other = (c.newlocale({ALL_OF_A_LOCALE}, n, None) for n in (b"en_US.UTF-8", b"C.UTF-8"))
assert one and other
for case in (c.towlower_l, c.towupper_l):
    case.argtypes = [ctypes.c_uint, ctypes.c_void_p]
    assert not [i for i in range(0x110000) if case(i, one) != case(i, other)]
"""
    subprocess.run([sys.executable, "-c", script], env={"LOCPATH": str(tmp_path)}, check=True)
