"""Graphs without a GPU: they repeat operators on addresses, whatever tensors have become."""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


@dataclass
class _Operation:
    operator: Any
    args: Any
    kwargs: Any
    made: Any


@dataclass
class FakeGraph:
    """What ran, in order. What it made stays where it is, as in the memory of a graph."""

    operations: list[_Operation] = field(default_factory=list)
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        own: set[int] = set()
        for each in self.operations:
            args, kwargs = tree_map_only(
                torch.Tensor,
                lambda tensor: tensor if id(tensor) in own else at_its_address(tensor),
                (each.args, each.kwargs),
            )
            result = each.operator(*args, **kwargs)
            for old, new in zip(tree_leaves(each.made), tree_leaves(result), strict=True):
                if isinstance(old, torch.Tensor):
                    own.add(id(old))
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


def at_its_address(tensor: torch.Tensor) -> torch.Tensor:
    """What lies now where the tensor lay."""
    if not tensor.numel():
        return tensor
    span = 1 + sum(
        (size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    memory = (ctypes.c_uint8 * (span * tensor.itemsize)).from_address(tensor.data_ptr())
    whole = torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype)
    return whole.as_strided(tensor.shape, tensor.stride())


class _Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    def __init__(self, graph: FakeGraph) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        if not all(isinstance(each, torch.Tensor) for each in tree_leaves(made)):
            raise RuntimeError("operation not permitted when stream is capturing")
        self._graph.operations.append(_Operation(func, args, kwargs or {}, made))
        return made


class FakeGraphMaker:
    def __init__(self) -> None:
        self.graphs: list[FakeGraph] = []
        self.pools = 0

    def new_pool(self) -> object:
        self.pools += 1
        return self.pools

    def capture(self, work: Callable[[], Any], pool: object) -> tuple[FakeGraph, Any]:
        assert pool
        work()
        graph = FakeGraph()
        before = torch.cuda.is_current_stream_capturing
        torch.cuda.is_current_stream_capturing = lambda: True  # networks ask it
        try:
            with _Recording(graph):
                outputs = work()
        finally:
            torch.cuda.is_current_stream_capturing = before
        self.graphs.append(graph)
        return graph, outputs
