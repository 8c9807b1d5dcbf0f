from pathlib import Path

import pytest

from pilotlight.sample_models.make_model import make_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model of each kind."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("tiny-t5", "tiny-bert", "tiny-vit", "tiny-gpt2"):
        make_model(name, folder / name)
    return folder
