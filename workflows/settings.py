"""The settings of one scheduler of workflows."""

from dataclasses import dataclass

from common.pod_secret import parse_secret_file
from common.settings_table import option, parse_choice, parse_int, parse_seconds
from common.sizes import parse_size_from
from common.tls import TLS_DIR_HELP, parse_tls_dir
from registry.redis.server_address import parse_redis_url
from workflows.plan.problem import SchedulingPolicy

MIB = 1 << 20
parse_scheduling = parse_choice(*SchedulingPolicy)


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Times in seconds, sizes in bytes."""

    host: str = option("127.0.0.1", str, "address to listen on; only gateways may reach it")
    port: int = option(8090, parse_int(0, 65535), "port to listen on; 0 takes a free one")
    redis_url: str = option("redis://127.0.0.1:6379", parse_redis_url, "the registry")
    pool: str = option("default", str, "pool of pods that runs are placed on")
    gateway_url: str = option("http://127.0.0.1:8080", str, "gateway that steps are sent through")
    scheduling: str = option(
        str(SchedulingPolicy.SPECULATIVE),
        parse_scheduling,
        f"where steps run: {', '.join(SchedulingPolicy)}",
    )
    run_timeout: float = option(300.0, parse_seconds, "maximum duration of a run")
    runner_memory: int = option(
        1024 * MIB, parse_size_from(64 * MIB), "memory of a workflow's runner beyond Python's own"
    )
    max_output_bytes: int = option(
        64 * MIB, parse_size_from(1024), "outputs of one step together; larger ones fail the step"
    )
    pod_secret_file: str = option(
        "", parse_secret_file, "file with the secrets that requests to gateway and pods carry"
    )
    tls_dir: str = option("", parse_tls_dir, TLS_DIR_HELP)
    log_level: str = option("INFO", str, "minimum level of log messages")


def tls_problems(settings: SchedulerSettings) -> list[str]:
    """What contradicts `tls-dir`, as sentences."""
    expected = "https://" if settings.tls_dir else "http://"
    if settings.gateway_url.startswith(expected):
        return []
    given = "with" if settings.tls_dir else "without"
    return [
        f"--gateway-url must begin with {expected} {given} --tls-dir, was {settings.gateway_url!r}"
    ]
