"""llama.cpp's server, for GGUF files. It has neither sleep nor adapters: it stops and starts.

The format: ggml-org/ggml, docs/gguf.md.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, ClassVar, Final

from registry.domain.model import EngineChoice, ModelSpec, Task
from runtime.engines.building import library_path
from runtime.engines.engine_adapter import EngineAdapter, EngineStart, LauncherFacts, served_names
from runtime.errors import ModelInvalid
from runtime.storage.listing import GGUF_SUFFIX, PROJECTOR_PREFIX

_MIN_CONTEXT: Final = 512
_TEXT, _ARRAY = 8, 9
_NUMBERS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q",
                   11: "q", 12: "d"}  # fmt: skip
"""Types of GGUF, as `struct` has them."""
_MAX_TEXT: Final = 1 << 20
_MAX_ITEMS: Final = 4096


class LlamaCppAdapter(EngineAdapter):
    title = "llama.cpp"
    choice = EngineChoice.LLAMA_CPP
    metrics: ClassVar = {
        "llamacpp:requests_processing": "running",
        "llamacpp:requests_deferred": "waiting",
        "llamacpp:prompt_tokens_total": "tokens",
        "llamacpp:tokens_predicted_total": "tokens",
        "llamacpp:n_decode_total": "steps",
    }
    error_line = re.compile(r"error loading model: |no backends are loaded")
    refused = re.compile("Failed to parse |not supported - hint|too large to|Unknown reasoning")
    sequences = 4
    process_bytes = 128 << 20

    def suits(self, spec: ModelSpec, folder: Path) -> bool:
        return _has_gguf(folder)

    def refusal(self, folder: Path, facts: LauncherFacts) -> str:
        return "" if _has_gguf(folder) else "llama.cpp reads GGUF files, and this model has none"

    def arguments(self, start: EngineStart, socket: str) -> list[str]:
        spec, sequences = start.spec, self.max_sequences(start.spec)
        if others := [each for each in spec.engine_args if not each.startswith("--max-num-seqs=")]:
            raise ModelInvalid(f"args has {others}, which llama.cpp does not take: leave them out")
        model = library_path(start.folder)
        if model is None:
            raise ModelInvalid(f"{spec.key} has no {GGUF_SUFFIX} file any more")
        flags = [
            "--model", str(model), "--alias", served_names(spec.name)[0], "--host", socket,
            "--metrics", "--no-webui", "--no-slots", "--offline", "--threads", str(start.threads),
            "--cache-ram", "0",  # else 8 GiB of prompts beside its cache
            "--parallel", str(sequences), *context_flags(model, start, sequences),
        ]  # fmt: skip
        if start.device_share is None:
            flags += ["--device", "none"]
        for path in sorted(model.parent.glob(f"{PROJECTOR_PREFIX}*{GGUF_SUFFIX}"))[:1]:
            flags += ["--mmproj", str(path)]
        return flags


def _has_gguf(folder: Path) -> bool:
    found = library_path(folder)
    return found is not None and found.suffix == GGUF_SUFFIX


def context_flags(model: Path, start: EngineStart, sequences: int) -> list[str]:
    """As many tokens as the cache's bytes take: shared, or of each sequence where a length is set.

    Raises ModelInvalid.
    """
    fields = read_fields(model)
    longest = start.spec.options.max_tokens or int(fields.get("context_length", 0)) or _MIN_CONTEXT
    fitting = start.cache_bytes // token_bytes(fields)
    total = max(_MIN_CONTEXT, min(sequences * longest, fitting))
    unified = "--no-kv-unified" if start.spec.options.max_tokens else "--kv-unified"
    flags = ["--ctx-size", str(total), unified]
    if start.spec.task is Task.TEXT_EMBEDDING:
        batch = str(min(longest, total))  # a whole text is in one
        flags += ["--embeddings", "--batch-size", batch, "--ubatch-size", batch]
        flags += [] if "pooling_type" in fields else ["--pooling", "mean"]
    return flags


def token_bytes(fields: dict[str, Any]) -> int:
    """Of keys and values of one token, in 16 bits."""
    layers, width = int(fields.get("block_count", 1)), int(fields.get("embedding_length", 1))
    heads = fields.get("attention.head_count", 1)
    of_keys = fields.get("attention.head_count_kv", heads)  # one number, or one per layer
    total = sum(map(int, of_keys)) if isinstance(of_keys, tuple) else layers * int(of_keys)
    default = width // max(1, max(heads) if isinstance(heads, tuple) else int(heads))
    sizes = [int(fields.get(f"attention.{each}_length", default)) for each in ("key", "value")]
    return max(1, 2 * total * sum(sizes))


def read_fields(path: Path) -> dict[str, Any]:
    """The architecture's fields, without its name before them, up to the tokenizer's.

    Raises ModelInvalid.
    """
    found: dict[str, Any] = {}
    try:
        with path.open("rb") as file:
            for name, value in _fields(file):
                if name.startswith("tokenizer."):
                    break
                found[name] = value
    except (struct.error, ValueError, KeyError, OSError) as error:
        raise ModelInvalid(f"{path.name} cannot be read as GGUF: {error}") from error
    prefix = f"{found.get('general.architecture', '')}."
    return {name.removeprefix(prefix): value for name, value in found.items()}


def _fields(file: IO[bytes]) -> Iterator[tuple[str, Any]]:
    if file.read(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    _version, _tensors, count = _read(file, "IQQ")
    for _ in range(min(count, _MAX_ITEMS)):
        name = _text(file)
        (kind,) = _read(file, "I")
        yield name, _value(file, kind)


def _value(file: IO[bytes], kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind != _ARRAY:
        return _read(file, _NUMBERS[kind])[0]
    of_kind, count = _read(file, "IQ")
    if count > _MAX_ITEMS:
        raise ValueError(f"a list of {count} items before the tokenizer")
    return tuple(_value(file, of_kind) for _ in range(count))


def _text(file: IO[bytes]) -> str:
    (size,) = _read(file, "Q")
    if size > _MAX_TEXT:
        raise ValueError(f"a text of {size} bytes")
    return file.read(size).decode(errors="replace")


def _read(file: IO[bytes], form: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{form}", file.read(struct.calcsize(f"<{form}")))
