"""ONNX models that change the case of texts, on machines with few locales."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from common.inference_protocol.tensors import bytes_tensor
from runtime.errors import ModelInvalid
from tests.runtime.engines.libraries.loaded import load, onnx_model


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


def test_texts_change_their_case_by_the_locale_of_the_model(tmp_path: Path) -> None:
    onnx.save(_model(_normalizer(locale="C.UTF-8")), tmp_path / "model.onnx")
    texts = bytes_tensor("x", [each.encode() for each in ("Good", "ÄÖÜ ΣΩ", "Иван")])
    found = load(tmp_path).v2([texts])[0].data.tolist()
    assert [each.decode() for each in found] == ["good", "äöü σω", "иван"]


def test_a_locale_that_is_not_installed_is_asked_for(tmp_path: Path) -> None:
    onnx.save(_model(_normalizer(locale="xx_XX.UTF-8")), tmp_path / "model.onnx")
    with pytest.raises(ModelInvalid, match=r"locale 'xx_XX.UTF-8', which this machine lacks;"):
        load(tmp_path)
