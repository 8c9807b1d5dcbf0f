"""What tells tensors on a device apart, without a look at their data."""

from __future__ import annotations

import torch

from runtime.device.device_tensor import DeviceTensor


def tensor(value: float) -> DeviceTensor:
    return DeviceTensor("x", "FP32", torch.full((10, 4), value))


def test_no_other_tensor_has_the_content_of_one_that_is_gone() -> None:
    """Requests that are suspected of hangs are known by it."""
    assert len({tensor(number).content() for number in range(50)}) == 50


def test_the_same_rows_have_the_same_content() -> None:
    whole = tensor(1.0)
    assert whole.rows(0, 5).content() == whole.renamed("y").rows(0, 5).content()
    assert whole.rows(0, 5).content() != whole.rows(5, 10).content()
    assert whole.rows(0, 5).content() != whole.content()
