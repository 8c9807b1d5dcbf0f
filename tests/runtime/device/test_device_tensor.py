"""Tensors between numpy and torch."""

import numpy as np
import pytest
import torch

from common.inference_protocol.tensors import BF16, numeric_tensor
from runtime.device.device_tensor import from_device, values_on

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
        ],
    ),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("dtype", "datatype"), [(torch.float32, "FP32"), (torch.bfloat16, BF16), (torch.int64, "INT64")]
)
def test_a_tensor_goes_to_the_device_and_back(
    device: str, dtype: torch.dtype, datatype: str
) -> None:
    values = torch.arange(6, device=device).reshape(2, 3).to(dtype).T
    tensor = from_device("x", datatype, values)
    assert tensor.data.tolist() == [[0, 3], [1, 4], [2, 5]]
    again = values_on(values.device, tensor)
    assert again.dtype == dtype
    assert torch.equal(again, values)


def test_a_network_that_writes_to_its_input_changes_no_kept_tensor() -> None:
    kept = np.ones(3, np.float32)
    kept.flags.writeable = False
    values_on(torch.device("cpu"), numeric_tensor("x", kept)).zero_()
    assert kept.tolist() == [1, 1, 1]
