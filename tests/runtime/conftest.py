"""Servers shared by the runtime's tests; each test has models and pods of its own."""

import contextlib
import itertools
import warnings
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from registry.domain.model import ModelName, ModelPolicy, ModelRecord, ModelSpec, Task
from registry.redis.client import Registry
from runtime.device.worker import DeviceWorker
from tests import servers
from tests.registry.redis.clients import Result, act
from tests.runtime.large_models import GatedStore, make_large, open_gated_store, put_model

TINY_MODELS = ("tiny-t5", "tiny-bert", "tiny-vit", "tiny-gpt2")

MakePod = Callable[..., servers.Pod]


@pytest.fixture(scope="session")
def s3() -> Iterator[servers.S3Server]:
    with servers.s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def starting_forkserver(s3: servers.S3Server) -> Iterator[servers.Forkserver]:
    with servers.forkserver(s3.environment, wait=False) as started:
        yield started


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one tiny model of each kind."""
    from pilotlight.sample_models.make_model import make_model

    folder = tmp_path_factory.mktemp("models")
    for name in TINY_MODELS:
        make_model(name, folder / name)
    return folder


@pytest.fixture(scope="session")
def diffusion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model that makes images."""
    from tests.tiny_models import make_model

    with warnings.catch_warnings():  # diffusers' own
        warnings.simplefilter("ignore")
        return make_model("tiny-diffusion", tmp_path_factory.mktemp("images") / "tiny")


@pytest.fixture(scope="session")
def forkserver(starting_forkserver: servers.Forkserver, models: Path) -> servers.Forkserver:
    """A forkserver that is ready to fork."""
    assert models.exists()
    starting_forkserver.wait_event(ready=True)
    return starting_forkserver


_pools = itertools.count(1)


class Cluster:
    """One test's pool: declares models and starts pods in it."""

    def __init__(
        self, stack: ExitStack, *, forkserver: servers.Forkserver, redis_url: str, folder: Path
    ) -> None:
        self._stack = stack
        self._forkserver = forkserver
        self._folder = folder
        self.redis_url = redis_url
        self.pool = f"pool-{next(_pools)}"

    def pod(self, name: str = "pod-a", **settings: Any) -> servers.Pod:
        """A ready pod; it ends with the test."""
        return self._stack.enter_context(self.pod_context(name, **settings))

    def pod_context(
        self, name: str, **settings: Any
    ) -> contextlib.AbstractContextManager[servers.Pod]:
        """A pod that the test ends itself."""
        return servers.pod(
            self._forkserver,
            name=name,
            redis_url=self.redis_url,
            folder=self._folder / name,
            pool=self.pool,
            **settings,
        )

    def do(self, action: Callable[[Registry], Awaitable[Result]]) -> Result:
        """Run something against the registry, as another component would."""
        return act(self.redis_url, self.pool, action)

    def declare(
        self,
        name: str,
        folder: Path | str,
        *,
        task: str | None = None,
        policy: ModelPolicy = ModelPolicy(),  # noqa: B008 - it is frozen
    ) -> ModelSpec:
        """Declare a model by a folder or a storage URI."""
        uri = folder if isinstance(folder, str) else folder.as_uri()
        model_task = Task(task) if task else None
        spec = ModelSpec(ModelName("default", name), uri, task=model_task, policy=policy)
        self.do(lambda registry: registry.put_models([spec]))
        return spec

    def withdraw(self, name: str) -> None:
        """Delete a model."""
        self.do(lambda registry: registry.delete_models([ModelName("default", name)]))

    def record(self, name: str) -> ModelRecord:
        """A model's record."""
        record = self.do(lambda registry: registry.get_model(ModelName("default", name)))
        assert record is not None
        return record

    def tiers(self, spec: ModelSpec) -> dict[str, str]:
        """Per pod that has something of the model: the tier it is in."""

        async def look(registry: Registry) -> dict[str, str]:
            state = await registry.cluster()
            return {
                name: residency.tier.value for name, residency in state.holders(spec.key).items()
            }

        return self.do(look)


@pytest.fixture
def cluster(
    forkserver: servers.Forkserver, redis: servers.RedisServer, tmp_path: Path
) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(stack, forkserver=forkserver, redis_url=redis.url, folder=tmp_path / "pods")


@pytest.fixture(scope="module")
def shared_cluster(
    forkserver: servers.Forkserver,
    redis: servers.RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Cluster]:
    """The pool of all tests of a module that share its pods."""
    folder = tmp_path_factory.mktemp("pods")
    with ExitStack() as stack:
        yield Cluster(stack, forkserver=forkserver, redis_url=redis.url, folder=folder)


@pytest.fixture(scope="module")
def gateway(
    shared_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[servers.Gateway]:
    """A gateway to the pods that all tests of a module share."""
    cluster = shared_cluster
    with servers.gateway(
        tmp_path_factory.mktemp("gateway"), redis_url=cluster.redis_url, pool=cluster.pool
    ) as started:
        yield started


@pytest.fixture
def device() -> Iterator[DeviceWorker]:
    worker = DeviceWorker(threads=1, max_queued=8)
    worker.start()
    yield worker
    worker.close()


@pytest.fixture
def gated_store(s3: servers.S3Server) -> Iterator[GatedStore]:
    with open_gated_store(s3) as store:
        yield store


@pytest.fixture(scope="session")
def large(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_large(models / "tiny-bert", tmp_path_factory.mktemp("large") / "model")


@pytest.fixture(scope="session")
def large_spec(s3: servers.S3Server, large: Path) -> ModelSpec:
    """The large model, in the store."""
    return put_model(s3, large, "large")
