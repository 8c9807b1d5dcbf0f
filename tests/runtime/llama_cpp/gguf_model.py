"""Writes a tiny random Llama as llama.cpp reads it: one GGUF file, version 3."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

_ALIGNMENT: Final = 32
_WORDS: Final = ("the", "river", "runs", "to", "a", "quiet", "sea", "and", "stars", "sing")
_UNKNOWN, _CONTROL, _BYTE, _NORMAL = 2, 3, 6, 1
_CHAT: Final = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
)


_VOCABULARY: Final = 3 + 256 + len(_WORDS)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _value(value: object) -> bytes:
    """With its type: 4 uint32, 5 int32, 6 float32, 8 string, 9 list."""
    match value:
        case int():
            return struct.pack("<II", 4, value)
        case float():
            return struct.pack("<If", 6, value)
        case str():
            return struct.pack("<I", 8) + _text(value)
        case [int(), *_]:
            numbers = struct.pack(f"<{len(value)}i", *value)
            return struct.pack("<IIQ", 9, 5, len(value)) + numbers
        case [float(), *_]:
            numbers = struct.pack(f"<{len(value)}f", *value)
            return struct.pack("<IIQ", 9, 6, len(value)) + numbers
        case [*texts]:
            entries = [_text(str(each)) for each in texts]
            return struct.pack("<IIQ", 9, 8, len(texts)) + b"".join(entries)
    raise TypeError(value)


def _fields(name: str, context: int, sizes: Mapping[str, int]) -> dict[str, object]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{each:02X}>" for each in range(256))]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *([_BYTE] * 256)]
    tokens += [f"\u2581{each}" for each in _WORDS]
    kinds += [_NORMAL] * len(_WORDS)
    return {
        "general.architecture": "llama",
        "general.name": name,
        "general.file_type": 0,
        "llama.context_length": context,
        "llama.embedding_length": sizes["width"],
        "llama.block_count": sizes["layers"],
        "llama.feed_forward_length": sizes["width"] * 2,
        "llama.attention.head_count": sizes["heads"],
        "llama.attention.head_count_kv": sizes["heads"],
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": sizes["width"] // sizes["heads"],
        "llama.vocab_size": _VOCABULARY,
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens),
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": _CHAT,
    }


def write_gguf(path: Path, *, seed: int = 0, layers: int = 2, context: int = 1024) -> Path:
    """A Llama with random weights in 32 bits."""
    width, random = 64, np.random.default_rng(seed)
    fields = _fields(path.stem, context, {"width": width, "layers": layers, "heads": 2})
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (_VOCABULARY, width),
        "output.weight": (_VOCABULARY, width),
        "output_norm.weight": (width,),
    }
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            shapes[f"blk.{layer}.{name}.weight"] = (width,)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            shapes[f"blk.{layer}.{name}.weight"] = (width, width)
        for name in ("ffn_gate", "ffn_up"):
            shapes[f"blk.{layer}.{name}.weight"] = (2 * width, width)
        shapes[f"blk.{layer}.ffn_down.weight"] = (width, 2 * width)
    tensors = {
        name: random.standard_normal(shape, np.float32) / 10
        if len(shape) > 1
        else np.ones(shape, np.float32)
        for name, shape in shapes.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(fields)))
        for name, value in fields.items():
            file.write(_text(name) + _value(value))
        at = 0
        for name, values in tensors.items():
            sizes = values.shape[::-1]
            entry = struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, at)
            file.write(_text(name) + entry)
            at += -(-values.nbytes // _ALIGNMENT) * _ALIGNMENT
        for values in tensors.values():
            file.write(b"\0" * (-file.tell() % _ALIGNMENT) + values.tobytes())
    return path
