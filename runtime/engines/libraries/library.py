"""A model that a library loads from a file's bytes, as a skeleton."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from runtime.engines.engine import Engine, ModelFolder
from runtime.engines.libraries.optional_library import one_line
from runtime.engines.skeletons import LoadedSkeleton, Skeleton
from runtime.errors import EngineMissing, ModelInvalid

if TYPE_CHECKING:
    import torch

    from common.inference_protocol.tensors import Tensor
    from runtime.engines.libraries.rows import TabularSignature


class LibraryModel(Protocol):
    """A loaded model. `infer` runs in the device's thread only."""

    signature: TabularSignature
    """Its inputs; its outputs are known from its first inference."""

    def check(self, inputs: Sequence[Tensor]) -> None:
        """Raise InvalidRequest if the model does not take these inputs."""

    def infer(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The outputs, row by row; raises InvalidRequest."""


class LibraryEngine(Engine):
    """An engine of models in one file, whose weights stay in the memory of the CPU."""

    uses_device = False
    memory_ratio = 1.0
    """Memory of a loaded model by bytes of its file: chosen by hand, no benchmark measures it."""
    fixed_bytes = 0
    """What a loaded model takes whatever its size; also chosen by hand."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def skeleton_key(self, model: ModelFolder) -> str:
        return self.name

    def build_skeleton(
        self, model: ModelFolder, *, key: str, device: torch.device, threads: int
    ) -> Skeleton:
        return LoadedSkeleton(
            key, lambda weights: self._load_checked(weights, model, device, threads)
        )

    def working_bytes(self, weight_bytes: int) -> int:
        """What the library takes beyond the file's size, which is reserved in any case."""
        return self.fixed_bytes + int(max(0.0, self.memory_ratio - 1.0) * weight_bytes)

    @abstractmethod
    def load(
        self, content: memoryview, model: ModelFolder, *, device: torch.device, threads: int
    ) -> Any:
        """What the model's task runs: a `LibraryModel`, or an ONNX session.

        `content`: the file's bytes, mapped: only while this runs. Raises any error of the library,
        or LoadFailed.
        """

    def _load_checked(
        self,
        weights: Mapping[str, torch.Tensor],
        model: ModelFolder,
        device: torch.device,
        threads: int,
    ) -> Any:
        content = weights[self.path.name].numpy().data
        try:
            return self.load(content, model, device=device, threads=threads)
        except (EngineMissing, ModelInvalid, MemoryError):
            raise
        except Exception as error:  # each library has errors of its own
            raise ModelInvalid(
                f"{self.name} cannot read {self.path.name}:"
                f" {type(error).__name__}: {one_line(error)}"
            ) from None
