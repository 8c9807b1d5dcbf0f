"""CUDA graphs of a network's forward, captured per shape of its inputs, and kept over evictions.

A graph holds the addresses of everything that it reads: it is right only for weights that lie where
those lay with which it was captured. So graphs are kept by the addresses of the weights. Forwards
with anything but tensors (caches of a generation) run as they are.
"""

from __future__ import annotations

import inspect
import logging
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch.utils import _pytree as trees

from runtime.device.device_errors import is_device_lost

logger = logging.getLogger(__name__)

MIN_USES: Final = 3
"""Forwards of a shape until it is captured: most shapes of texts are rare."""
MAX_GRAPHS: Final = 16
"""Of a network. They share their memory, as only one runs at a time."""


class Graph(Protocol):
    """Captured work."""

    def replay(self) -> None:
        """Run it again, on what its inputs hold now, into the outputs that `capture` gave."""


class GraphMaker(Protocol):
    """A device that can capture work."""

    def capture(self, work: Callable[[], Any], pool: object) -> tuple[Graph, Any]:
        """The graph of `work` and its outputs; graphs of one pool never run at once.

        Called in the device's thread. Raises RuntimeError if the work cannot be captured.
        """

    def new_pool(self) -> object:
        """Memory for the graphs of one network."""


class CudaGraphMaker:
    """CUDA's graphs, on the current device. No GPU has run this yet."""

    def __init__(self, lock: threading.Lock) -> None:
        """`lock`: held during a capture, which no other thread may disturb by freeing memory."""
        self._lock = lock
        # One for all captures: cuBLAS keeps a workspace of up to 32 MiB for each stream.
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's

    def new_pool(self) -> object:
        return torch.cuda.graph_pool_handle()

    def capture(self, work: Callable[[], Any], pool: Any) -> tuple[Graph, Any]:
        self._stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            work()  # what libraries do only once must not be captured
            # Of this thread alone: loads allocate memory and copy in others meanwhile. Not by
            # `torch.cuda.graph`, which collects garbage and empties torch's cache each time.
            with self._lock:
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                try:
                    outputs = work()
                finally:
                    graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._stream)
        return graph, outputs


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: Graph
    inputs: Mapping[str, torch.Tensor]
    outputs: Any


class ForwardGraphs:
    """In place of a network's `forward`. Used by the device's thread alone."""

    def __init__(
        self,
        network: torch.nn.Module,
        maker: GraphMaker,
        *,
        min_uses: int = MIN_USES,
        max_graphs: int = MAX_GRAPHS,
    ) -> None:
        self._network = weakref.ref(network)
        self._forward = type(network).forward
        self.__signature__ = inspect.signature(network.forward)  # transformers asks for it
        self._maker = maker
        self._min_uses = min_uses
        self._max_graphs = max_graphs
        self._pool: object | None = None
        self._place: Hashable = None
        self._uses: Counter[Hashable] = Counter()
        self._captured: OrderedDict[Hashable, _Captured | None] = OrderedDict()
        """By place and shape, the least recently used first; None: it cannot be captured."""

    def weights_at(self, place: Hashable) -> None:
        """Weights lie there now."""
        self._place = place

    def __len__(self) -> int:
        return sum(each is not None for each in self._captured.values())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key = self._key(args, kwargs)
        if key is None:
            return self._run(*args, **kwargs)
        if key not in self._captured:
            self._uses[key] += 1
            if self._uses[key] < self._min_uses:
                return self._run(*args, **kwargs)
            self._capture(key, kwargs)
        self._captured.move_to_end(key)
        captured = self._captured[key]
        if captured is None:
            return self._run(*args, **kwargs)
        for name, tensor in captured.inputs.items():
            tensor.copy_(kwargs[name])
        captured.graph.replay()
        return _map(torch.clone, captured.outputs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        network = self._network()
        assert network is not None  # whoever calls this has it
        return self._forward(network, *args, **kwargs)

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable | None:
        if args or self._place is None or torch.is_grad_enabled():
            return None
        parts: list[Hashable] = []
        for name, value in sorted(kwargs.items()):
            if isinstance(value, torch.Tensor):
                parts.append((name, tuple(value.shape), value.dtype, value.device))
            elif value is None or isinstance(value, (bool, int, float, str)):
                parts.append((name, value))
            else:
                return None
        return self._place, tuple(parts)

    def _capture(self, key: Hashable, kwargs: Mapping[str, Any]) -> None:
        inputs = {
            name: value.clone() for name, value in kwargs.items() if isinstance(value, torch.Tensor)
        }
        self._pool = self._pool or self._maker.new_pool()
        captured = None
        try:
            graph, outputs = self._maker.capture(
                lambda: self._run(**{**kwargs, **inputs}), self._pool
            )
            captured = _Captured(graph, inputs, outputs)
        except RuntimeError as error:
            if is_device_lost(error):
                raise
            logger.info("forward not captured", extra={"error": error})
            self._pool = None  # torch leaves the pool of a failed capture unusable
        self._captured[key] = captured
        del self._uses[key]
        if len(self._captured) > self._max_graphs:
            self._captured.popitem(last=False)


def _map(change: Callable[[torch.Tensor], torch.Tensor], outputs: Any) -> Any:
    """Outputs of the same kind, with all their tensors changed."""
    return trees.tree_map_only(torch.Tensor, change, outputs)
