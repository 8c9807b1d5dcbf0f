"""Files of versions that the installed library cannot read, and the memory of many loads."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import onnx
import pytest

from runtime.errors import ModelInvalid
from tests.runtime.engines.libraries.loaded import load
from tests.tabular_models import MAKERS

LOADS = 200


@pytest.mark.parametrize("part", ["ir_version", "opset"])
def test_onnx_of_a_newer_version_is_refused_with_the_versions(part: str, tmp_path: Path) -> None:
    path = MAKERS["onnx"](tmp_path) / "model.onnx"
    model = onnx.load(path)
    if part == "opset":
        model.opset_import[0].version = 99
    else:
        model.ir_version = 99
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelInvalid, match=r"onnx cannot read model\.onnx.*(version|opset)"):
        load(tmp_path)


@pytest.mark.slow
def test_skops_of_a_newer_version_is_refused_with_the_versions(tmp_path: Path) -> None:
    path = MAKERS["sklearn"](tmp_path) / "model.skops"
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(content["schema.json"])
    content["schema.json"] = json.dumps({**schema, "protocol": 99}).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    with pytest.raises(ModelInvalid, match=r"protocol 99.*up to"):
        load(tmp_path)


def test_a_booster_that_xgboost_does_not_know_is_refused_by_its_name(tmp_path: Path) -> None:
    """XGBoost and LightGBM read files of any version, as far as they know what is in them."""
    path = MAKERS["xgboost"](tmp_path) / "model.json"
    document = json.loads(path.read_text())
    document["learner"]["gradient_booster"]["name"] = "gbforest"
    path.write_text(json.dumps({**document, "version": [99, 0, 0]}))
    with pytest.raises(ModelInvalid, match=r"xgboost cannot read model\.json.*gbforest"):
        load(tmp_path)


@pytest.mark.slow
def test_loads_of_onnx_models_give_their_memory_back(tmp_path: Path) -> None:
    """In a process of its own: 200 loads of 4 MB are 800 MB if nothing is given back."""
    code = f"""
import gc, resource
import numpy as np, onnx
from onnx import TensorProto, helper, numpy_helper
from pathlib import Path
from tests.runtime.engines.libraries.loaded import load
from common.inference_protocol.tensors import numeric_tensor

folder = Path({str(tmp_path)!r})
weights = numpy_helper.from_array(np.ones((1000, 1000), np.float32), "w")
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 1000])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 1000])], [weights])
made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.save(made, folder / "model.onnx")
row = numeric_tensor("x", np.ones((1, 1000), np.float32))

def resident():
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()

for number in range({LOADS}):
    (answer,) = load(folder).v2([row])
    assert answer.data[0, 0] == 1000.0
    if number == 4:
        before = resident()
print(resident() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 * 1024**2
