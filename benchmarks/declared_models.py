"""Declares the models that a benchmark asks for."""

import asyncio
from collections.abc import Sequence

from registry.domain.model import ModelSpec
from registry.redis.client import Registry


def declare_models(redis_url: str, specs: Sequence[ModelSpec]) -> None:
    """At least one model, all of one pool; from code that runs no event loop."""
    asyncio.run(_put(redis_url, specs))


async def _put(redis_url: str, specs: Sequence[ModelSpec]) -> None:
    registry = await Registry.connect(redis_url, specs[0].pool)
    try:
        await registry.put_models(specs)
    finally:
        await registry.close()
