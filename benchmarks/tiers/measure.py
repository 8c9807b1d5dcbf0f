"""Loads by every contestant in one process, repeats interleaved.

Some leave bytes to be read when they are first used, so the first inference (one token) is timed
after each load, too. All networks must compute the same, or the comparison would be of nothing.
"""

import gc
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from benchmarks.fresh_memory import touch_free_memory
from benchmarks.quantiles import rotated
from benchmarks.storage.serving import environment_of, serving
from benchmarks.tiers.contestants import Contestant, Start, usual_ways
from benchmarks.tiers.loaders import loaders, missing_loaders
from benchmarks.tiers.models import (
    WEIGHTS,
    available_bytes,
    drop_pages,
    folder_of,
    read_file,
    store,
)
from benchmarks.tiers.ours import our_ways
from benchmarks.tiers.remote import remote_ways

_ROOM: Final = 4
"""A model is measured where so many times its size of memory are available."""
_LARGE_BYTES: Final = 2_000_000_000
_LARGE_REPEATS: Final = 3
"""Larger models are loaded no more often than this: they vary less, and the run is to end."""


@dataclass(frozen=True, slots=True)
class Loading:
    """One load."""

    model: str
    size_bytes: int
    contestant: str
    is_ours: bool
    start: Start
    load_s: float
    first_inference_s: float


def measure(*, repeats: int, models: Sequence[str]) -> tuple[list[Loading], list[str]]:
    """All loads, and a line for each thing that was left out."""
    transformers.logging.disable_progress_bar()
    results: list[Loading] = []
    skipped = missing_loaders()
    for model in models:
        size = (folder_of(model) / WEIGHTS).stat().st_size
        if available_bytes() < _ROOM * size:
            skipped.append(f"{model}: {_ROOM} times {size / 1e9:.1f} GB of memory are not free")
            continue
        most = min(repeats, _LARGE_REPEATS) if size > _LARGE_BYTES else repeats
        with _contestants(model, skipped) as contestants:
            results += _measure_model(model, contestants, most, skipped)
    return results, skipped


@contextmanager
def _contestants(model: str, skipped: list[str]) -> Iterator[list[Contestant]]:
    folder = folder_of(model)
    before = dict(os.environ)
    with ExitStack() as stack:
        os.environ.update(environment_of(stack.enter_context(serving(store()))))
        try:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-tiers-")))
            yield [
                *usual_ways(folder),
                *loaders(folder),
                *stack.enter_context(our_ways(folder, skipped)),
                *stack.enter_context(remote_ways(model, scratch)),
            ]
        finally:
            os.environ.clear()
            os.environ.update(before)


def _measure_model(
    model: str, contestants: Sequence[Contestant], repeats: int, skipped: list[str]
) -> list[Loading]:
    path = folder_of(model) / WEIGHTS
    able = _able(model, contestants, skipped)
    results = []
    for start in Start:
        taking_part = [each for each in able if start in each.starts]
        for number in range(repeats):
            for each in rotated(taking_part, number):
                if start is not Start.COLD:
                    read_file(path)
                elif not drop_pages(path):
                    skipped.append(f"{model}, {each.name}: pages could not be dropped")
                    continue
                size = path.stat().st_size
                if start is Start.S3:  # the only one whose contestants fill so much
                    touch_free_memory(2 * size)
                load_s, first_s = _time(each)
                results.append(
                    Loading(model, size, each.name, each.is_ours, start, load_s, first_s)
                )
    return results


def _able(model: str, contestants: Sequence[Contestant], skipped: list[str]) -> list[Contestant]:
    """Those that load the network that the others load; once, what a process does only once."""
    able = []
    expected = None
    for each in contestants:
        try:
            seen = _answer(each)
        except Exception as error:  # a peer may fail in any way
            if each.is_ours:
                raise
            skipped.append(f"{model}, {each.name}: {type(error).__name__}: {error}")
            continue
        expected = seen if expected is None else expected
        if seen is not None and expected is not None and not torch.equal(seen, expected):
            raise RuntimeError(f"{model}: {each.name} loaded another network than the first way")
        able.append(each)
    return able


def _answer(contestant: Contestant) -> torch.Tensor | None:
    network = contestant.load()
    try:
        if network is None:
            return None
        with torch.inference_mode():
            tokens = torch.tensor([[5, 6, 7, 1]])
            logits: torch.Tensor = network(input_ids=tokens, decoder_input_ids=tokens).logits
        return logits.clone()
    finally:
        del network
        contestant.end()


def _time(contestant: Contestant) -> tuple[float, float]:
    gc.collect()
    began_s = time.perf_counter()
    network: Any = contestant.load()
    loaded_s = time.perf_counter()
    if network is not None:
        with torch.inference_mode():
            network.generate(
                input_ids=torch.tensor([[5, 6, 7, 1]]), min_new_tokens=1, max_new_tokens=1
            )
    ended_s = time.perf_counter()
    del network
    contestant.end()
    return loaded_s - began_s, ended_s - loaded_s
