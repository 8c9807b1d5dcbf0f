"""The settings of the controller."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from registry.redis.server_address import parse_redis_url
from registry.settings_table import option, parse_bool, parse_int, parse_seconds


def _url_of_models(text: str) -> str:
    try:
        text.format(namespace="team", name="model")
    except (LookupError, ValueError) as error:
        raise ValueError(
            f"must be a URL in which only {{namespace}} and {{name}} are filled in, was {text!r}"
        ) from error
    return text


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Everything the controller is told when it starts. Times in seconds."""

    redis_url: str = option("redis://127.0.0.1:6379", parse_redis_url, "the registry")
    namespace: str = option("pilotlight", str, "namespace of the controller, its lease and Secret")
    identity: str = option("", str, "name of this replica in elections; empty: the host name")
    host: str = option("0.0.0.0", str, "address to listen on")
    port: int = option(8080, parse_int(0, 65535), "port of /healthz, /readyz and /metrics")
    webhook_port: int = option(9443, parse_int(0, 65535), "port of the admission webhooks; 0: none")
    webhook_service: str = option(
        "pilotlight-webhook", str, "name of the webhooks' Service, for self-made certificates"
    )
    certificates: str = option(
        "", str, "folder with tls.crt and tls.key for the webhooks, as cert-manager's Secrets have"
        " them; empty: made here, kept in a Secret"
    )  # fmt: skip
    url: str = option(
        "http://pilotlight-gateway.pilotlight.svc.cluster.local/serving/{namespace}/{name}",
        _url_of_models,
        "a model's status.url; {namespace} and {name} are filled in",
    )
    address: str = option(
        "http://pilotlight-gateway.pilotlight.svc.cluster.local/serving/{namespace}/{name}",
        _url_of_models,
        "a model's status.address.url, inside the cluster",
    )
    unload_timeout: float = option(
        60.0, parse_seconds, "how long a deleted model may take to leave all pods"
    )
    elect: bool = option(True, parse_bool, "elect a leader among replicas; only it acts")
    log_level: str = option("INFO", str, "least level that is logged")

    @property
    def own_identity(self) -> str:
        """This replica's name in elections."""
        return self.identity or socket.gethostname()
