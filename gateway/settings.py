"""The settings of one gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gateway.authentication.issuers import read_issuers
from gateway.authentication.tenant_keys import read_keys
from registry.redis.server_address import parse_redis_url
from registry.settings_table import option, parse_bool, parse_int, parse_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20


def _folder(read: Callable[[Path], object]) -> Callable[[str], str]:
    def checked(text: str) -> str:
        if text:
            try:
                read(Path(text))
            except OSError as error:
                raise ValueError(
                    f"must be a folder that can be read, was {text!r}: {error}"
                ) from None
        return text

    return checked


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Everything a gateway is told when it starts. Times in seconds, sizes in bytes."""

    host: str = option("127.0.0.1", str, "address to listen on; 0.0.0.0 in a container")
    port: int = option(8080, parse_int(0, 65535), "port to listen on; 0 takes a free one")
    redis_url: str = option("redis://127.0.0.1:6379", parse_redis_url, "the registry")
    pool: str = option("default", str, "pool of pods to send requests to")
    max_body_bytes: int = option(
        64 * MIB, parse_int(1), "longest request body; raise it for large inputs"
    )
    buffer_bytes: int = option(
        1 * MIB, parse_int(1), "bodies up to this size are held until answered, so can be retried"
    )
    request_timeout: float = option(
        300.0, parse_seconds, "longest a request without a deadline may take"
    )
    body_timeout: float = option(
        30.0, parse_seconds, "longest pause inside a request body before 408"
    )
    drain_timeout: float = option(
        30.0, parse_seconds, "how long requests in flight may take after SIGTERM"
    )
    reservation_ttl: float = option(
        15.0, parse_seconds, "how long the slots of a gateway that died stay taken"
    )
    allow_policy_header: bool = option(
        True, parse_bool, "let requests choose a policy by x-pilotlight-policy"
    )
    api_keys: str = option(
        "",
        _folder(read_keys),
        "folder with a file of API keys for each tenant; empty: none is needed",
    )
    token_issuers: str = option(
        "",
        _folder(read_issuers),
        "folder with a file of trusted token issuers for each tenant; empty: tokens are not read",
    )
    token_leeway: float = option(
        30.0, parse_seconds, "how far the clocks of token issuers may be off from this one"
    )
    seed: int = option(0, parse_int(0), "seed of random choices; runs with one seed choose alike")
    log_level: str = option("INFO", str, "least level that is logged")
