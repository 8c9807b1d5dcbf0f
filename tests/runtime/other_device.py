"""A device that torch does not take for the CPU, and computes on it: for what no GPU is needed.

Its tensors lie in the CPU's memory, but say that they are on `other:0`, and torch refuses what it
refuses for a GPU: operators over tensors of both places, and `numpy()`. It is registered for the
whole process and cannot be taken back, so it belongs in a process of its own (`rehearsal.py`).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.runtime.fake_engine import FakeCopy, FakeEngine

NAME = "other"
CPU = torch.device("cpu")
COPIES = frozenset({"aten::_to_copy", "aten::copy_", "aten::_copy_from"})
"""The operators that take tensors of two places."""


class OtherTensor(torch.Tensor):
    """A tensor on the device; `raw` is its memory."""

    raw: torch.Tensor

    @staticmethod
    def __new__(cls: type[OtherTensor], raw: torch.Tensor) -> OtherTensor:
        made: OtherTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            raw.size(),
            strides=raw.stride(),
            storage_offset=raw.storage_offset(),
            dtype=raw.dtype,
            device=torch.device(NAME, 0),
        )
        made.raw = raw
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # so says torch

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # torch declares a function of its own here
        cls, operator: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operator; one that is made of others comes back as those."""
        del kinds
        made = operator.decompose(*args, **(kwargs or {}))
        return _run(operator, *args, **(kwargs or {})) if made is NotImplemented else made

    def tolist(self) -> Any:
        """As for a GPU: the values."""
        return self.raw.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """As for a GPU: only by force."""
        if not force:
            raise TypeError(f"a tensor on {self.device} is no numpy array; copy it with .cpu()")
        return self.raw.numpy()


def register_device() -> torch.device:
    """Make the device known to torch; once in a process."""
    module = types.ModuleType(f"torch.{NAME}")
    for name, value in {
        "is_available": True,
        "is_initialized": True,
        "device_count": 1,
        "current_device": 0,
        "_is_in_bad_fork": False,
        "manual_seed_all": None,
        "empty_cache": None,
    }.items():
        setattr(module, name, lambda *_, value=value: value)
    module.Stream, module.stream = _Stream, _refuse_stream  # type: ignore[attr-defined]
    _setup_privateuseone_for_python_backend(NAME, backend_module=module)
    _LIBRARY.fallback(_run, "PrivateUse1")  # type: ignore[no-untyped-call]  # torch's
    _device_constructors()  # keeps the functions that are replaced below
    torch.tensor = _by_way_of_the_cpu(torch.tensor)  # C++ builds it in a way that Python cannot
    torch.as_tensor = _by_way_of_the_cpu(torch.as_tensor)
    torch.Generator = _CpuGenerator  # type: ignore[misc]
    return torch.device(NAME, 0)


class OtherEngine(FakeEngine):
    """The fake engine's memory and copy stream, on the device."""

    device = torch.device("meta")
    """Set by whoever registers the device."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def allocate(self, size_bytes: int) -> torch.Tensor:
        """Memory of the device."""
        return OtherTensor(super().allocate(size_bytes))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> FakeCopy:
        """From the host to the device."""
        assert isinstance(target, OtherTensor)
        return super().copy(target.raw, source)


_LIBRARY = torch.library.Library("_", "IMPL")  # type: ignore[no-untyped-call]  # torch's


class _CpuGenerator(torch.Generator):
    def __new__(cls, device: Any = None) -> _CpuGenerator:
        del device
        return super().__new__(cls, CPU)  # type: ignore[call-arg]  # so says torch


class _Stream:
    """A stream that may be made, and waited for, but not worked on."""

    def __init__(self, device: Any = None) -> None:
        del device

    def synchronize(self) -> None:
        """Nothing was begun on it."""


def _refuse_stream(stream: Any) -> Any:
    """Inference and loads meet on the default stream alone: work on another one is a race."""
    raise RuntimeError(f"work on {stream}, which what the default stream does is not waited for")


def _run(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """An operator on the memory of its tensors; raises as torch does for tensors of two places."""
    name = operator._schema.name

    def memory_of(value: Any) -> Any:
        if isinstance(value, OtherTensor):
            return value.raw
        if isinstance(value, torch.Tensor) and value.dim() and name not in COPIES:
            raise RuntimeError(f"{operator}: tensors of {value.device} and of {NAME}:0")
        if isinstance(value, torch.device) and value.type == NAME:
            return CPU
        return value

    goes_home = name == "aten::_to_copy" and kwargs.get("device") == CPU
    with torch.inference_mode(mode=False), torch.no_grad():
        values = {key: memory_of(value) for key, value in kwargs.items() if key != "pin_memory"}
        result = operator(*tree_map(memory_of, args), **values)
        if name == "aten::copy_":
            return args[0]
        return result if goes_home else tree_map(lambda value: _wrapped(value, args), result)


def _wrapped(value: Any, args: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    same = [each for each in args if isinstance(each, OtherTensor) and each.raw is value]
    return same[0] if same else OtherTensor(value)  # an operator in place gives what it was given


def _by_way_of_the_cpu(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def made(*args: Any, device: Any = None, **kwargs: Any) -> torch.Tensor:
        tensor = make(*args, **kwargs)
        return tensor if device is None else tensor.to(device)

    return made
