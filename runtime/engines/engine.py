"""The interface of all engines: what builds, loads, runs and unloads models of one kind.

An engine is chosen by the files of a model's folder (`building.engine_of`). Its `Skeleton` is a
model without weights: `attach` loads them, `network` then runs batches, `detach` frees them.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from registry.domain.model import Task

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from runtime.weights.converted_weights import Conversion
    from runtime.weights.safetensors_files import StoredTensor


# Skeletons are kept for reuse: attaching weights to one takes milliseconds, and the next model of
# the architecture has what the first inference initialised.


MAX_KEPT = 8
"""Maximum number of unused skeletons; each takes 1 to 5 MB of Python objects."""
MAX_CONVERSIONS = 64
"""Maximum number of kinds of models whose conversions are known."""


@dataclass(frozen=True, slots=True)
class ParameterSlot:
    """The place of a stored tensor: an entry of `module._parameters` or `module._buffers`."""

    entries: dict[str, torch.Tensor | None]
    name: str
    empty: torch.Tensor
    """The entry without weights: a tensor without memory."""
    stored: str
    """The tensor's name in the files; tied slots have the same."""


class Skeleton:
    """A network whose weights can be attached and detached. One user at a time."""

    copies_weights = False
    """Whether `attach` blocks and copies the weights, so that they can be released after it."""
    is_reusable = True
    """Whether it is worth keeping without its weights."""

    def __init__(
        self,
        key: str,
        network: PreTrainedModel,
        slots: tuple[ParameterSlot, ...],
        conversions: tuple[Conversion, ...] | None = None,
    ) -> None:
        self.key = key
        self.network = network
        self.conversions = conversions
        """Of stored tensors to those of the slots; None: they are taken as they are."""
        self.has_inferred = False
        self._slots = slots

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

    def detach(self) -> None:
        """Drop the weights, which frees their memory even if the network is still referenced."""
        for slot in self._slots:
            slot.entries[slot.name] = slot.empty


class LoadedSkeleton(Skeleton):
    """A model that something else loads from its files: a library, another process, a server.

    Structure and weights come at once, so that it is empty between `detach` and `attach`.
    """

    copies_weights = True
    is_reusable = False

    def __init__(
        self,
        key: str,
        load: Callable[[Mapping[str, torch.Tensor]], Any],
        unload: Callable[[Any], object] = lambda _network: None,
        *,
        has_inferred: bool = False,
    ) -> None:
        """`load`: the model from the bytes of its files, by name; blocks, raises LoadFailed.

        `has_inferred`: that it is loaded says as much as a first inference.
        """
        super().__init__(key, None, ())
        self.has_inferred = has_inferred
        self._load, self._unload = load, unload

    def attach(self, weights: Mapping[str, torch.Tensor]) -> None:
        self.network = self._load(weights)

    def detach(self) -> None:
        if self.network is not None:
            self._unload(self.network)
            self.network = None


class Skeletons:
    """The most recently used skeletons that are not in use. Thread-safe."""

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, Skeleton] = OrderedDict()
        self._conversions: OrderedDict[str, tuple[Conversion, ...] | None] = OrderedDict()

    def conversions(self, key: str, build: Callable[[], Skeleton]) -> tuple[Conversion, ...] | None:
        """Those of the skeletons with this key; one that is built for it is kept."""
        with self._lock:
            if key in self._conversions:
                self._conversions.move_to_end(key)
                return self._conversions[key]
        skeleton = build()
        self.put_back(skeleton)
        with self._lock:
            self._conversions[key] = skeleton.conversions
            if len(self._conversions) > MAX_CONVERSIONS:
                self._conversions.popitem(last=False)
        return skeleton.conversions

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


DEFAULT_POD_BYTES = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model to build: its small files, its declared task, and what its weights hold."""

    path: Path
    task: Task | None
    tensors: Sequence[StoredTensor]
    dtype: torch.dtype | None = None
    """Of its weights, where it is not that of its configuration."""
    pod_bytes: int = DEFAULT_POD_BYTES
    """Budget of all models of the pod."""


class Engine(ABC):
    """Stateless. Methods block and raise LoadFailed."""

    name: str
    takes_dtype = False
    """Whether its weights may be converted to another type."""
    reads_files = False
    """Whether something else reads its files, once they are complete on disk."""
    uses_device = True
    """Whether weights go to the pod's device; else they stay in the memory of the CPU."""

    @abstractmethod
    def skeleton_key(self, model: ModelFolder) -> str:
        """Equal for models that can use one skeleton."""

    @abstractmethod
    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        """The model without weights; `threads` of one inference."""

    def working_bytes(self, weight_bytes: int) -> int:
        """Memory that a loaded model takes beside its weights' bytes, estimated."""
        return 0
