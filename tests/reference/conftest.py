"""The pod that all tests of the suite share, and the record of what they find."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests import servers
from tests.reference.outcomes import Outcomes
from tests.reference.reference_pod import BALLAST, ReferencePod

MIB = 1024**2
_QUICK = ("conftest.py", "test_outcomes.py")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out modules of which no test runs: to import them takes 20 s."""
    is_left_out = "not reference" in config.option.markexpr and collection_path.suffix == ".py"
    return True if is_left_out and collection_path.name not in _QUICK else None


_BALLAST_WORDS = 1 << 17
_LEFT_BYTES = 32 * 1024
"""What the ballast leaves of the device: less than any model needs."""
_PAGE = servers.REPOSITORY / "docs/compatibility.md"


def make_ballast(small: Path, folder: Path) -> Path:
    """A copy of a small model with embeddings of many more words."""
    servers.copy_model(small, folder)
    weights, config = folder / "model.safetensors", folder / "config.json"
    tensors = load_file(weights)
    (name,) = [each for each in tensors if each.endswith("word_embeddings.weight")]
    tensors[name] = np.resize(tensors[name], (_BALLAST_WORDS, tensors[name].shape[1]))
    save_file(tensors, weights)
    fields = json.loads(config.read_text())
    config.write_text(json.dumps({**fields, "vocab_size": _BALLAST_WORDS}))
    return folder


@pytest.fixture(scope="session")
def outcomes() -> Iterator[Outcomes]:
    found = Outcomes(_PAGE, is_writing=bool(os.environ.get("PILOTLIGHT_REFERENCE_DOCS")))
    yield found
    if found.is_writing:
        found.write()


@pytest.fixture(scope="session")
def reference_pod(
    redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ReferencePod]:
    """A pod with all formats; models are declared and withdrawn by each test."""
    from pilotlight.sample_models.make_model import make_model

    folder = tmp_path_factory.mktemp("reference")
    small = make_model("tiny-bert", folder / "small")
    ballast = make_ballast(small, folder / BALLAST)
    ballast_bytes = (ballast / "model.safetensors").stat().st_size
    with (
        servers.forkserver() as parent,
        servers.pod(
            parent,
            name="reference",
            redis_url=redis.url,
            folder=folder / "pod",
            pool="reference",
            slots=16,
            memory_bytes=ballast_bytes + _LEFT_BYTES,
            host_bytes=256 * MIB,
            generation_cache_bytes=8 * MIB,
            allow_pickle=True,
        ) as pod,
    ):
        started = ReferencePod(pod, redis.url, "reference")
        started.declare(BALLAST, ballast)
        yield started
        started.close()
