"""Whether a model's files fit together, before any load: small files, and headers of weights.

Reads the first bytes of each file of weights, so that absent, truncated and corrupt ones show, and
builds the network for the shapes that they state, which the first load then uses.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import chain
from typing import Final

from registry.domain.model import ModelSpec
from runtime.engines.building import engine_of
from runtime.engines.engine import ModelFolder
from runtime.errors import ModelInvalid
from runtime.loading.weight_resolver import WeightResolver
from runtime.storage.listing import LIBRARY_SUFFIXES, SKOPS_SUFFIX, WEIGHT_SUFFIX, RemoteFile
from runtime.storage.storages import ModelStorage
from runtime.threads import in_thread
from runtime.weights.safetensors_files import (
    HEADER_LENGTH_BYTES,
    MAX_HEADER_BYTES,
    StoredTensor,
    read_tensors,
)

_START_BYTES: Final = 256 * 1024
"""Longer than most headers: one read is enough."""
_PARALLEL: Final = 8
_ZIP: Final = b"PK"


async def check_files(resolver: WeightResolver, spec: ModelSpec, *, build_threads: int) -> None:
    """Raises LoadFailed where the model's files cannot be read, or do not fit together."""
    try:
        with await in_thread(resolver.threads, resolver.cache.lock_for_use, spec.key):
            await resolver.processors.get(spec)
            if resolver.server is None and not spec.base:
                await in_thread(resolver.threads, _check_weights, resolver, spec, build_threads)
    except ModelInvalid:
        # The source may be corrected: the next attempt fetches the files again.
        resolver.processors.forget(spec.key)
        await in_thread(resolver.threads, resolver.cache.discard, spec.key)
        raise


def _check_weights(resolver: WeightResolver, spec: ModelSpec, build_threads: int) -> None:
    cache = resolver.cache
    stored = cache.weight_files(spec)
    open_storage = lru_cache(partial(cache.source, spec))  # a library fetches the whole model
    for each in stored:
        _check_start(open_storage, each)
    files = [each for each in stored if each.path.endswith(WEIGHT_SUFFIX)]
    if not files or cache.has_weights(spec.key):
        return
    folder = cache.folder_of(spec.key)
    with ThreadPoolExecutor(min(_PARALLEL, len(files))) as threads:
        tensors = list(chain.from_iterable(threads.map(partial(_tensors, open_storage()), files)))
    engine = engine_of(folder)
    if not engine.takes_dtype:  # no network of transformers
        return
    model = ModelFolder(folder, spec.task, tensors, None, resolver.store.budget_bytes)
    key, skeletons = engine.skeleton_key(model), resolver.skeletons
    build = partial(
        engine.build_skeleton, model, key=key, device=resolver.memory.device, threads=build_threads
    )
    skeletons.put_back(skeletons.take(key, build))


def _check_start(open_storage: Callable[[], ModelStorage], file: RemoteFile) -> None:
    """Raises ModelInvalid for what a library cannot read, whatever follows."""
    if not file.path.endswith(LIBRARY_SUFFIXES):
        return
    if not file.size_bytes:
        raise ModelInvalid(f"{file.path} is empty: is its upload complete?")
    if file.path.endswith(SKOPS_SUFFIX) and open_storage().read_start(file, 2) != _ZIP:
        raise ModelInvalid(
            f"{file.path} is no file of skops, whose files are zip archives; a pickle under that"
            " name? Save the model with skops.io.dump(model, 'model.skops')"
        )


def _tensors(storage: ModelStorage, file: RemoteFile) -> tuple[StoredTensor, ...]:
    """What the file's header states; raises ModelInvalid if the file is not as long as it says."""
    start = storage.read_start(file, _START_BYTES) if file.size_bytes else b""
    end = HEADER_LENGTH_BYTES + int.from_bytes(start[:HEADER_LENGTH_BYTES], "little")
    if len(start) < end <= min(MAX_HEADER_BYTES, file.size_bytes):
        start = storage.read_start(file, end)
    descriptor = os.memfd_create("header")
    try:
        os.write(descriptor, start)
        os.ftruncate(descriptor, file.size_bytes)  # takes no memory for what is not written
        return read_tensors(descriptor, file.path)
    finally:
        os.close(descriptor)
