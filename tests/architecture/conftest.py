"""What the counts of visited files share."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests import servers

_pool_numbers = itertools.count()


@pytest.fixture
def pool() -> str:
    """A pool that no other test uses."""
    return f"architecture-{next(_pool_numbers)}"


@pytest.fixture(scope="session")
def s3() -> Iterator[servers.S3Server]:
    with servers.s3_server() as server:
        yield server
