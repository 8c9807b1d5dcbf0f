"""Weights read while they are fetched: a part of the slab as soon as its bytes are here."""

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


class StreamingWeights:
    """The safetensors files of a fetch under way, all headers of which are here."""

    def __init__(self, arrivals: DownloadProgress) -> None:
        """Read the headers; raises ModelInvalid."""
        self._arrivals = arrivals
        self._files = OpenFiles(arrivals.names, arrivals.descriptors())
        self.layout = self._files.layout

    def parts(self, most_bytes: int) -> Iterator[SlabPart]:
        """Parts in the order in which they become readable."""
        missing: dict[SlabPart, int] = {}
        waiting: defaultdict[ArrivedSpan, list[SlabPart]] = defaultdict(list)
        for part in slab_parts(self.layout.size_bytes, min(most_bytes, SPAN_BYTES)):
            spans = self._spans_of(part)
            missing[part] = len(spans)
            for span in spans:
                waiting[span].append(part)
            if not spans:
                yield part
        for span in self._arrivals.spans():
            for part in waiting.pop(span, []):
                missing[part] -= 1
                if not missing[part]:
                    yield part

    def _spans_of(self, part: SlabPart) -> set[ArrivedSpan]:
        return {
            ArrivedSpan(piece.file, number)
            for piece in self._files.pieces(part.offset, part.size_bytes)
            for number in range(
                piece.file_offset // SPAN_BYTES,
                (piece.file_offset + piece.size_bytes - 1) // SPAN_BYTES + 1,
            )
        }

    def wait_verified(self) -> None:
        """Wait until the files are checked and in their place."""
        self._arrivals.wait_over()

    def map_tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, when all are here and checked."""
        self.wait_verified()
        return self._files.map_tensors()

    def read_into(self, offset: int, target: memoryview) -> None:
        """Read bytes of a part that has been given out."""
        self._files.read_into(offset, target)

    def close(self) -> None:
        """The files belong to the download."""
