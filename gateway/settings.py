"""The settings of one gateway."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from common.pod_secret import parse_secret_file
from common.settings_table import option, parse_bool, parse_choice, parse_int, parse_seconds
from common.sizes import parse_size_from
from common.tls import TLS_DIR_HELP, parse_tls_dir
from gateway.authentication import read_keys
from gateway.authentication.issuers import read_issuers
from registry.domain.tenant_rules import parse_rules
from registry.redis.server_address import parse_redis_url

MIB = 1 << 20
_DOMAIN = re.compile(r"[a-z0-9-]{1,63}(\.[a-z0-9-]{1,63})*")


def _readable_folder(read: Callable[[Path], object]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text:
            try:
                read(Path(text))
            except OSError as error:
                raise ValueError(f"must be a readable folder, was {text!r}: {error}") from None
        return text

    return parse


def _parse_logger_prefixes(text: str) -> str:
    if text != "auto":
        parse_rules(prefixes=text)
    return text


def _parse_bool_or_auto(text: str) -> bool | None:
    return None if text == "auto" else parse_bool(text)


def _parse_pools(text: str) -> str:
    names = [each.strip() for each in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"must be names of pools, each once, separated by commas, was {text!r}")
    return ",".join(names)


def _parse_domain(text: str) -> str:
    domain = text.lower().strip(".")
    if domain and not _DOMAIN.fullmatch(domain):
        raise ValueError(f"must be a domain such as example.com, was {text!r}")
    return domain


def _parse_endpoint(text: str) -> str:
    if text and urlsplit(text).scheme not in ("http", "https"):
        raise ValueError(f"must be an http:// or https:// URL, was {text!r}")
    return text


def _parse_ratio(text: str) -> float:
    ratio = float(text)
    if not 0 <= ratio <= 1:
        raise ValueError(f"must be from 0 to 1, was {text!r}")
    return ratio


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """Times in seconds, sizes in bytes."""

    host: str = option("127.0.0.1", str, "address to listen on; 0.0.0.0 in a container")
    port: int = option(8080, parse_int(0, 65535), "port to listen on; 0 takes a free one")
    health_port: int = option(
        0,
        parse_int(0, 65535),
        "port of /healthz and /readyz, answered by a thread of its own, also while the event loop"
        " is busy; 0: none",
    )
    grpc_port: int = option(
        0, parse_int(0, 65535), "port of the Open Inference Protocol over gRPC; 0: none"
    )
    picker_port: int = option(
        0,
        parse_int(0, 65535),
        "port of the endpoint picker, which Envoy asks over gRPC (ext_proc); 0: none",
    )
    picker_tls: str = option(
        "auto",
        parse_choice("auto", "off"),
        "auto: TLS with tls-dir's certificate, or else one made at the start; off: plain",
    )
    redis_url: str = option("redis://127.0.0.1:6379", parse_redis_url, "the registry")
    pool: str = option(
        "default",
        _parse_pools,
        "pool of pods to send requests to; several, separated by commas: each model is served by"
        " the pool that declares it",
    )
    max_body_bytes: int = option(
        64 * MIB, parse_size_from(1), "maximum size of a request body; raise it for large inputs"
    )
    request_timeout: float = option(
        300.0, parse_seconds, "maximum duration of a request; its header cannot extend it"
    )
    body_timeout: float = option(
        30.0, parse_seconds, "maximum pause inside a body, or in reading a response"
    )
    held_body_bytes: int = option(
        256 * MIB,
        parse_size_from(1),
        "memory for bodies over 64 KiB of all requests together; else 503",
    )
    shutdown_delay: float = option(
        0.0,
        parse_seconds,
        "time after SIGTERM in which requests are served as before, each on a connection that its"
        " response closes, until load balancers send new ones elsewhere",
    )
    drain_timeout: float = option(
        30.0,
        parse_seconds,
        "maximum duration of requests in flight after SIGTERM and the shutdown delay",
    )
    allow_policy_header: bool | None = option(
        None,
        _parse_bool_or_auto,
        "accept x-pilotlight-policy, which selects a request's routing policy and can load a model"
        " on every pod; auto: unless keys or tokens are required",
    )
    logger_prefixes: str = option(
        "auto",
        _parse_logger_prefixes,
        "URLs that models of each namespace may name in logger, such as"
        " 'team=http://broker.team.svc/; *=http://dumper.logs.svc/'; others get no events; auto:"
        " all, or those of Services in the model's namespace where keys or tokens are required",
    )
    pod_secret_file: str = option(
        "",
        parse_secret_file,
        "file with the secrets, one per line, that requests to pods carry; read again when it"
        " changes; empty: none",
    )
    tls_dir: str = option("", parse_tls_dir, TLS_DIR_HELP)
    tls_port: int = option(
        0, parse_int(0, 65535), "a further port, on which clients speak TLS, with tls-dir; 0: none"
    )
    ingress_domain: str = option(
        "",
        _parse_domain,
        "domain of models' Hosts, such as example.com, KServe's ingressDomain: a Host below it that"
        " names no declared model is 404, and other domains are the gateway's own; empty: every"
        " domain may be the models'",
    )
    workflows_url: str = option(
        "",
        str,
        "address of a scheduler of workflows, http://HOST:PORT, with tls-dir https://HOST:PORT;"
        " empty: none is served",
    )
    api_keys: str = option(
        "",
        _readable_folder(read_keys),
        "folder with a file of API keys for each tenant; empty: no key is needed",
    )
    token_issuers: str = option(
        "",
        _readable_folder(read_issuers),
        "folder with a file of trusted token issuers for each tenant; empty: tokens are not read",
    )
    cluster_issuer: str = option(
        "", str, "folder with the cluster's issuer and jwks, whose tokens of accounts are accepted"
    )
    operators: str = option(
        "pilotlight:pilotlight-operator", str, "accounts of operators, NAMESPACE:NAME, by commas"
    )
    auth: str = option(
        "auto", parse_choice("auto", "open"), "open: no client is asked for a key or token"
    )
    access_log: bool = option(
        False, parse_bool, "log a line per request: model, status, pod, reason, time"
    )
    otlp_endpoint: str = option(
        "",
        _parse_endpoint,
        "URL of an OpenTelemetry collector (OTLP over HTTP) to send spans to; empty: nothing is"
        " traced",
        variable="OTEL_EXPORTER_OTLP_ENDPOINT",
    )
    trace_ratio: float = option(
        0.1, _parse_ratio, "part of the requests without a trace context of their own to trace"
    )
    log_format: str = option(
        "text",
        parse_choice("text", "json"),
        "text, or json: an object per line, with trace_id in the access log",
    )
    log_level: str = option("INFO", str, "minimum level of log messages")

    @property
    def pools(self) -> tuple[str, ...]:
        return tuple(self.pool.split(","))


def contradictions(settings: GatewaySettings) -> list[str]:
    """What contradicts `tls-dir` or `auth`, as sentences."""
    found = []
    if settings.auth == "open" and (settings.api_keys or settings.token_issuers):
        found.append(
            "--auth open (PILOTLIGHT_AUTH) asks no client for the keys or tokens of --api-keys and"
            " --token-issuers: leave out one or the other"
        )
    if settings.tls_port and not settings.tls_dir:
        found.append("--tls-port needs --tls-dir, the folder with the certificate to serve")
    expected = "https://" if settings.tls_dir else "http://"
    if settings.workflows_url and not settings.workflows_url.startswith(expected):
        given = "with" if settings.tls_dir else "without"
        found.append(
            f"--workflows-url must begin with {expected} {given} --tls-dir,"
            f" was {settings.workflows_url!r}"
        )
    return found
