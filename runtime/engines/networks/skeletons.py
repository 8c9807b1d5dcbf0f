"""Networks without weights, kept per architecture: putting weights in costs milliseconds.

A skeleton that lost its model goes back here and takes the next model of the same architecture.
What its first inference set up in this process is set up already.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transformers import PreTrainedModel

MAX_KEPT = 8
"""Skeletons without weights: 1 to 5 MB of Python objects each."""


@dataclass(frozen=True, slots=True)
class ParameterSlot:
    """Where a stored tensor goes: an entry of `module._parameters` or `module._buffers`."""

    entries: dict[str, torch.Tensor | None]
    name: str
    empty: torch.Tensor
    """What stands there without weights: a tensor without memory."""
    stored: str
    """The tensor's name in the files; tied places have the same."""


class Skeleton:
    """A network whose weights can be put in and taken out. One user at a time."""

    def __init__(
        self, signature: str, network: PreTrainedModel, places: tuple[ParameterSlot, ...]
    ) -> None:
        self.signature = signature
        self.network = network
        self.has_inferred = False
        self._places = places

    def put_in(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Give the network its weights; tied places share one tensor."""
        made: dict[str, torch.Tensor] = {}
        for place in self._places:
            if place.stored not in made:
                tensor = weights[place.stored]
                made[place.stored] = (
                    torch.nn.Parameter(tensor, requires_grad=False)
                    if isinstance(place.empty, torch.nn.Parameter)
                    else tensor
                )
            place.entries[place.name] = made[place.stored]

    def take_out(self) -> None:
        """Drop the weights, so that their memory is free whoever still knows the network."""
        for place in self._places:
            place.entries[place.name] = place.empty


class Skeletons:
    """Skeletons at hand, the most recently used ones. Safe to call from many threads."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Skeleton] = OrderedDict()

    def take(self, signature: str, build: Callable[[], Skeleton]) -> Skeleton:
        """A skeleton of this architecture, kept or built anew."""
        with self._lock:
            for number, skeleton in reversed(self._kept.items()):
                if skeleton.signature == signature:
                    return self._kept.pop(number)
        return build()

    def give_back(self, skeleton: Skeleton) -> None:
        """Keep a skeleton, without its weights, for the next model."""
        skeleton.take_out()
        with self._lock:
            self._kept[id(skeleton)] = skeleton
            if len(self._kept) > self._max_kept:
                self._kept.popitem(last=False)

    def __len__(self) -> int:
        return len(self._kept)
