"""Reading weights, mapped and in the slab's order: types, shards, gaps, unaligned bytes."""

import ctypes
import json
import mmap
import os
import struct
import warnings
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from runtime.errors import ModelInvalid
from runtime.weights.safetensors_files import ALIGNMENT_BYTES, DTYPES, view_of
from runtime.weights.weight_source import DiskWeights, read_ahead
from tests.servers import wait_until


def write_file(path: Path, header: Mapping[str, object], content: bytes, pad: int = 0) -> Path:
    text = json.dumps(header).encode() + b" " * pad
    path.write_bytes(struct.pack("<Q", len(text)) + text + content)
    return path


def slab_of(source: DiskWeights, step: int) -> torch.Tensor:
    """The slab, read in parts of `step` bytes."""
    slab = bytearray(source.layout.size_bytes)
    for first in range(0, len(slab), step):
        source.read_into(first, memoryview(slab)[first : first + step])
    return torch.frombuffer(slab, dtype=torch.uint8)


def some_tensor(name: str, count: int) -> torch.Tensor:
    """A tensor of random bytes, since every bit pattern matters; a bool is 0 or 1."""
    dtype = DTYPES[name]
    generator = torch.Generator().manual_seed(count)
    raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    return (raw % 2).bool() if dtype == torch.bool else raw.view(dtype)


def raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("step", [1 << 20, 4096, 7])
def test_every_type_is_equal_mapped_and_read(tmp_path: Path, step: int) -> None:
    tensors = {name: some_tensor(name, index + 3) for index, name in enumerate(DTYPES)}
    save_file(tensors, tmp_path / "m.safetensors")
    source = DiskWeights([tmp_path / "m.safetensors"])
    slab, mapped = slab_of(source, step), source.map_tensors()
    for stored in source.layout.tensors:
        expected = tensors[stored.name]
        for found in (mapped[stored.name], view_of(slab, stored)):
            assert found.dtype == expected.dtype
            assert raw(found) == raw(expected)
    source.close()


def test_tensors_of_the_slab_are_aligned_and_do_not_overlap(tmp_path: Path) -> None:
    save_file({str(n): torch.ones(n) for n in range(1, 40)}, tmp_path / "m.safetensors")
    source = DiskWeights([tmp_path / "m.safetensors"])
    end = 0
    for tensor in source.layout.tensors:
        assert tensor.offset % ALIGNMENT_BYTES == 0
        assert tensor.offset >= end
        end = tensor.offset + tensor.size_bytes
    assert source.layout.size_bytes >= end
    source.close()


def test_reads_unaligned_tensors(tmp_path: Path) -> None:
    values = torch.tensor([1.5, -2.5, 3.5])
    header = {
        "flag": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "values": {"dtype": "F32", "shape": [3], "data_offsets": [1, 13]},
    }
    for pad in range(4):
        path = write_file(tmp_path / f"{pad}.safetensors", header, b"\7" + raw(values), pad)
        source = DiskWeights([path])
        found = source.map_tensors()["values"]
        assert found.data_ptr() % 4 == 0
        assert found.tolist() == values.tolist()
        placed = {tensor.name: tensor for tensor in source.layout.tensors}["values"]
        assert view_of(slab_of(source, 5), placed).tolist() == values.tolist()
        source.close()


def test_gaps_between_tensors_are_skipped(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]},
        "b": {"dtype": "U8", "shape": [2], "data_offsets": [6, 8]},
    }
    source = DiskWeights([write_file(tmp_path / "m.safetensors", header, bytes(range(8)))])
    assert source.map_tensors()["b"].tolist() == [6, 7]
    assert source.layout.size_bytes == 2 * ALIGNMENT_BYTES
    source.close()


def test_refuses_overlapping_tensors(tmp_path: Path) -> None:
    entry = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}
    path = write_file(tmp_path / "m.safetensors", {"a": entry, "b": entry}, bytes(4))
    with pytest.raises(ModelInvalid, match="overlaps"):
        DiskWeights([path])


def test_last_shard_wins(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(3), "b": torch.zeros(2)}, tmp_path / "1.safetensors")
    save_file({"a": torch.ones(5)}, tmp_path / "2.safetensors")
    source = DiskWeights([tmp_path / "1.safetensors", tmp_path / "2.safetensors"])
    assert source.map_tensors()["a"].tolist() == [1] * 5
    placed = {tensor.name: tensor for tensor in source.layout.tensors}
    assert view_of(slab_of(source, 64), placed["a"]).tolist() == [1] * 5
    assert view_of(slab_of(source, 64), placed["b"]).tolist() == [0] * 2
    source.close()


def test_write_to_a_mapped_tensor_does_not_change_the_file(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    save_file({"a": torch.ones(8)}, path)
    before = path.read_bytes()
    source = DiskWeights([path])
    tensor = source.map_tensors()["a"]
    tensor.fill_(7)
    assert path.read_bytes() == before
    source.close()


def test_equally_named_files_of_a_librarys_model_are_all_read(tmp_path: Path) -> None:
    paths = [tmp_path / "model.onnx", tmp_path / "a" / "w.bin", tmp_path / "b" / "w.bin"]
    for value, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([value]) * 100)
    source = DiskWeights(paths)
    assert sum(tensor.size_bytes for tensor in source.layout.tensors) == 300
    found = {name: tensor.tolist() for name, tensor in source.map_tensors().items()}
    assert found == {"model.onnx": [0] * 100, "a/w.bin": [1] * 100, "b/w.bin": [2] * 100}
    source.close()


def resident_bytes(path: Path) -> int:
    """Bytes of a file that are in the page cache, by mincore(2)."""
    size = path.stat().st_size
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that it cannot write there
        region = torch.frombuffer(mapping, dtype=torch.uint8)
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mincore(ctypes.c_void_p(region.data_ptr()), ctypes.c_size_t(size), pages) == 0
    return sum(page & 1 for page in pages) * mmap.PAGESIZE


def skip_where_pages_stay(path: Path) -> None:
    """Drop the file's pages, as no code of ours; skip the test where they stay in memory."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_bytes(path):
        pytest.skip("this file system keeps its files in memory")


def test_whole_range_is_read_ahead(tmp_path: Path) -> None:
    """One call for all of it brings in 8 MiB on Linux with common disks."""
    path, size = tmp_path / "weights", 48 * 1024**2
    path.write_bytes(bytes(size))
    skip_where_pages_stay(path)
    with path.open("rb") as file:
        read_ahead(file.fileno(), 0, size)
        wait_until(lambda: resident_bytes(path) == size, timeout_s=60, what="the file is in memory")


def test_cached_pages_can_be_dropped(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"w": torch.zeros(1 << 20)}, path)
    skip_where_pages_stay(path)
    source = DiskWeights([path])
    source.read_into(0, memoryview(bytearray(source.layout.size_bytes)))
    assert resident_bytes(path)
    source.drop_cached()
    source.close()
    assert resident_bytes(path) == 0
