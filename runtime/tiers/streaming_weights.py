"""Weights read while they are downloaded: each part of the slab once its bytes have arrived."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from runtime.storage.partial_file import SPAN_BYTES
from runtime.tiers.download_progress import ArrivedSpan
from runtime.weights.weight_source import OpenFiles, SlabPart, slab_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from runtime.tiers.download_progress import DownloadProgress


class StreamingWeights(OpenFiles):
    """The safetensors files of a running download, whose headers have all arrived."""

    def __init__(self, progress: DownloadProgress) -> None:
        """Read the headers; raises ModelInvalid."""
        super().__init__(progress.names, progress.descriptors())
        self._progress = progress

    def parts(self, max_bytes: int) -> Iterator[SlabPart]:
        missing: dict[SlabPart, int] = {}
        waiting: defaultdict[ArrivedSpan, list[SlabPart]] = defaultdict(list)
        for part in slab_parts(self.layout.size_bytes, min(max_bytes, SPAN_BYTES)):
            spans = self._spans_of(part)
            missing[part] = len(spans)
            for span in spans:
                waiting[span].append(part)
            if not spans:
                yield part
        for span in self._progress.spans():
            for part in waiting.pop(span, []):
                missing[part] -= 1
                if not missing[part]:
                    yield part

    def _spans_of(self, part: SlabPart) -> set[ArrivedSpan]:
        return {
            ArrivedSpan(piece.file, number)
            for piece in self.pieces(part.offset, part.size_bytes)
            for number in range(
                piece.file_offset // SPAN_BYTES,
                (piece.file_offset + piece.size_bytes - 1) // SPAN_BYTES + 1,
            )
        }

    def wait_verified(self) -> None:
        self._progress.wait_finished()

    def map_tensors(self) -> dict[str, torch.Tensor]:
        self.wait_verified()
        return super().map_tensors()

    def close(self) -> None:
        """Nothing to do: the files belong to the download."""
