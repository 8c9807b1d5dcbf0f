"""A real Envoy whose external processing is the gateway's picker."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests import servers

PROGRAM = os.environ.get("PILOTLIGHT_ENVOY", "")
DESTINATION = "x-gateway-destination-endpoint"
_TYPES = "type.googleapis.com/envoy"


@dataclass
class Envoy:
    url: str
    admin_url: str
    log: Path

    def statistic(self, name: str) -> int:
        text = httpx.get(f"{self.admin_url}/stats?filter={name}", trust_env=False).text
        return sum(int(line.rpartition(" ")[2]) for line in text.splitlines())


def _typed(kind: str, **fields: Any) -> dict[str, Any]:
    return {"@type": f"{_TYPES}.{kind}", **fields}


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _cluster(name: str, ports: Sequence[int], **more: Any) -> dict[str, Any]:
    endpoints = [{"endpoint": {"address": _address(port)}} for port in ports]
    return {
        "name": name,
        "type": "STATIC",
        "load_assignment": {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]},
        **more,
    }


def _pods(ports: Sequence[int], source: str) -> dict[str, Any]:
    """The pool: of its pods the first of the picked ones that Envoy reaches."""
    metadata = {"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}
    sources = [{"header": DESTINATION} if source == "header" else metadata]
    policies = "extensions.load_balancing_policies"
    robin = _typed(f"{policies}.round_robin.v3.RoundRobin")
    fallback = {"policies": [{"typed_extension_config": {"name": "robin", "typed_config": robin}}]}
    override = _typed(
        f"{policies}.override_host.v3.OverrideHost",
        override_host_sources=sources,
        fallback_policy=fallback,
    )
    chosen = {"typed_extension_config": {"name": "override", "typed_config": override}}
    return _cluster("pods", ports, load_balancing_policy={"policies": [chosen]})


def _picker(port: int, *, is_tls: bool) -> dict[str, Any]:
    options = _typed(
        "extensions.upstreams.http.v3.HttpProtocolOptions",
        explicit_http_config={"http2_protocol_options": {}},
    )
    more: dict[str, Any] = {
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options
        }
    }
    if is_tls:
        context = _typed(
            "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            common_tls_context={"alpn_protocols": ["h2"]},
        )
        more["transport_socket"] = {"name": "tls", "typed_config": context}
    return _cluster("picker", [port], **more)


def _filters(subset: Sequence[str] | None, **options: Any) -> list[dict[str, Any]]:
    namespaces = {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]}
    processor = {
        "grpc_service": {"envoy_grpc": {"cluster_name": "picker"}},
        "processing_mode": {"request_header_mode": "SEND", "response_header_mode": "SEND"},
        "message_timeout": "30s",
        "allow_mode_override": True,
        "metadata_options": {
            "forwarding_namespaces": namespaces,
            "receiving_namespaces": namespaces,
        },
        **options,
    }
    served = {"metadata_namespace": "envoy.lb", "key": f"{DESTINATION}-served", "type": "STRING"}
    rule = {"header": "x-served", "on_header_present": served}
    filters = "extensions.filters.http"
    found = [
        _typed(f"{filters}.ext_proc.v3.ExternalProcessor", **processor),
        _typed(f"{filters}.header_to_metadata.v3.Config", response_rules=[rule]),
        _typed(f"{filters}.router.v3.Router"),
    ]
    if subset is not None:
        entry = {
            "metadata_namespace": "envoy.lb.subset_hint",
            "value": {f"{DESTINATION}-subset": list(subset)},
        }
        found.insert(0, _typed(f"{filters}.set_metadata.v3.Config", metadata=[entry]))
    return [{"name": f"filter-{at}", "typed_config": each} for at, each in enumerate(found)]


def configuration(
    port: int,
    admin_port: int,
    picker_port: int | None,
    pods: Sequence[int],
    *,
    source: str = "metadata",
    is_tls: bool = False,
    subset: Sequence[str] | None = None,
    retry: dict[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """`options`: fields of Envoy's ExternalProcessor; without a picker, `pods` is the gateway."""
    timeout = "60s" if picker_port else "310s"
    route = {"cluster": "pods", "timeout": timeout, **({"retry_policy": retry} if retry else {})}
    host = {
        "name": "all",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": route}],
        "response_headers_to_add": [
            {"header": {"key": "x-served", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}
        ],
    }
    manager = _typed(
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="clients",
        route_config={"virtual_hosts": [host]},
        http_filters=_filters(subset, **options)[0 if picker_port else -1 :],
        stream_idle_timeout="310s",
    )
    chain = {"filters": [{"name": "http", "typed_config": manager}]}
    listener = {"address": _address(port), "filter_chains": [chain]}
    clusters = [_cluster("pods", pods)]
    if picker_port:
        clusters = [_pods(pods, source), _picker(picker_port, is_tls=is_tls)]
    return {
        "admin": {"address": _address(admin_port)},
        "static_resources": {"listeners": [listener], "clusters": clusters},
    }


@contextlib.contextmanager
def envoy(
    folder: Path, picker_port: int | None, pods: Sequence[int], **options: Any
) -> Iterator[Envoy]:
    """A ready Envoy before these pods, with its log in `folder`."""
    port, admin_port = servers.free_port(), servers.free_port()
    file, log = folder / f"envoy-{port}.json", folder / f"envoy-{port}.log"
    file.write_text(json.dumps(configuration(port, admin_port, picker_port, pods, **options)))
    arguments = ["-c", str(file), "--concurrency", "1", "--log-path", str(log), "-l", "warning"]
    with subprocess.Popen(
        [PROGRAM, *arguments, "--disable-hot-restart", "--drain-time-s", "1"]
    ) as process:
        started = Envoy(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}", log)

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            with contextlib.suppress(httpx.TransportError):
                return httpx.get(f"{started.admin_url}/ready", trust_env=False).is_success
            return False

        try:
            servers.wait_until(is_ready, what="Envoy ready")
            yield started
        finally:
            process.kill()
