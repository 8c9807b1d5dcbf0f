"""A gateway and a scheduler of workflows for all tests of a module."""

import itertools
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests import servers
from tests.gateway.gateway_harness import GatewayHarness
from tests.workflows.service.harness import WorkflowHarness, running_scheduler

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def harness(
    redis: servers.RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[WorkflowHarness]:
    pool, folder = f"workflows-{next(_numbers)}", tmp_path_factory.mktemp("workflows")
    port = servers.free_port()
    with ExitStack() as stack:
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=600))
        gateway = stack.enter_context(
            servers.gateway(
                folder / "gateway",
                redis_url=redis.url,
                pool=pool,
                workflows_url=f"http://127.0.0.1:{port}",
            )
        )
        pool_harness = GatewayHarness(redis.url, pool, gateway, client, stack)
        scheduler = stack.enter_context(
            running_scheduler(folder / "scheduler", redis.url, pool, gateway.url, port=port)
        )
        harness = WorkflowHarness(pool_harness, folder, scheduler)
        for model in (
            "embed",
            "judge",
            "writer",
            "hold-writer",
            "words",
            "words-hold",
            "words-break",
        ):
            pool_harness.declare(model)
        harness.pods = pool_harness.start_pods("pod-a", "pod-b")
        yield harness
        pool_harness.threads.shutdown(cancel_futures=True)
