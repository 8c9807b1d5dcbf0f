"""Networks without weights, kept for reuse: attaching weights to one takes milliseconds.

When a model leaves the device, its skeleton returns here for the next model of the same
architecture, which reuses the state that the skeleton's first inference initialised.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from transformers import PreTrainedModel

MAX_KEPT = 8
"""Maximum number of unused skeletons; each takes 1 to 5 MB of Python objects."""


@dataclass(frozen=True, slots=True)
class ParameterSlot:
    """The place of a stored tensor: an entry of `module._parameters` or `module._buffers`."""

    entries: dict[str, torch.Tensor | None]
    name: str
    empty: torch.Tensor
    """The entry without weights: a tensor without memory."""
    stored: str
    """The tensor's name in the files; tied slots have the same."""


class ForwardCapture(Protocol):
    """In place of a network's forward, for weights at one place."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def weights_at(self, place: Hashable) -> None:
        """Weights lie there now; None: nowhere."""


class Skeleton:
    """A network whose weights can be attached and detached. One user at a time."""

    copies_weights = False
    """Whether `attach` blocks and copies the weights, so that they can be released after it."""
    is_reusable = True
    """Whether it is worth keeping without its weights."""

    def __init__(
        self, key: str, network: PreTrainedModel, slots: tuple[ParameterSlot, ...]
    ) -> None:
        self.key = key
        self.network = network
        self.has_inferred = False
        self._slots = slots
        self._graphs: ForwardCapture | None = None

    def use_graphs(self, graphs: ForwardCapture) -> None:
        """Have the network's forwards captured; they stay with the skeleton."""
        self._graphs = self.network.forward = graphs

    def attach(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Give the network its weights; tied slots share one tensor."""
        attached: dict[str, torch.Tensor] = {}
        for slot in self._slots:
            if slot.stored not in attached:
                tensor = weights[slot.stored]
                attached[slot.stored] = (
                    torch.nn.Parameter(tensor, requires_grad=False)
                    if isinstance(slot.empty, torch.nn.Parameter)
                    else tensor
                )
            slot.entries[slot.name] = attached[slot.stored]
        if self._graphs is not None:
            self._graphs.weights_at(tuple(each.data_ptr() for each in attached.values()))

    def detach(self) -> None:
        """Drop the weights, which frees their memory even if the network is still referenced."""
        if self._graphs is not None:
            self._graphs.weights_at(None)
        for slot in self._slots:
            slot.entries[slot.name] = slot.empty


class Skeletons:
    """The most recently used skeletons that are not in use. Thread-safe."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Skeleton] = OrderedDict()

    def take(self, key: str, build: Callable[[], Skeleton]) -> Skeleton:
        """A skeleton with this key, kept or newly built."""
        with self._lock:
            for number, skeleton in reversed(self._kept.items()):
                if skeleton.key == key:
                    return self._kept.pop(number)
        return build()

    def put_back(self, skeleton: Skeleton) -> None:
        """Keep a skeleton, without its weights, for the next model."""
        skeleton.detach()
        if not skeleton.is_reusable:
            return
        with self._lock:
            self._kept[id(skeleton)] = skeleton
            if len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)

    def __len__(self) -> int:
        return len(self._kept)
