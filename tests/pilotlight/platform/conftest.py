from pathlib import Path

import pytest

from pilotlight.sample_models import make_samples


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample models, made once."""
    folder = tmp_path_factory.mktemp("objects")
    make_samples(folder, lambda *_: None)
    return folder
