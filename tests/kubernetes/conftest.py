"""The cluster of the tests: one of their own, or the one that `make test-kubernetes` was given."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kubernetes.kubectl import Kubectl
from tests.kubernetes.places import REPOSITORY, builds
from tests.kubernetes.suite import Cluster, own_cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger(__name__)

SETTING = "PILOTLIGHT_TEST_KUBECONFIG"
OWN = "own"
"""Value of the setting inside the namespaces that `scripts/kubernetes/test` makes."""


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running cluster with KServe."""
    given = os.environ.get(SETTING)
    if not given:
        pytest.skip("needs a cluster: run by `make test-kubernetes`")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    folder = tmp_path_factory.mktemp("cluster")
    if given == OWN:
        logger.info("starting %s", ", ".join(f"{b.name} {b.version}" for b in builds().values()))
        with own_cluster(folder) as own:
            yield own
    else:
        yield Cluster(Kubectl(Path(given)), folder)


@pytest.fixture(scope="session")
def admin(cluster: Cluster) -> Kubectl:
    """kubectl with all rights."""
    return cluster.admin


@pytest.fixture(scope="session")
def installed(admin: Kubectl) -> Kubectl:
    """The same, with Pilotlight and its pool applied."""
    base = REPOSITORY / "manifests" / "base"
    admin("apply", "--server-side", "--warnings-as-errors", "-k", str(base))
    return admin


@pytest.fixture(scope="session")
def node(cluster: Cluster) -> Cluster:
    """The cluster, if its pods run on this machine."""
    if cluster.plane is None:
        pytest.skip("needs the node agent, which this cluster does without")
    return cluster
