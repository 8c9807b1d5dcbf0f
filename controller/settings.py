"""Settings of the controller: flags and environment variables."""

import re
from dataclasses import dataclass

from common.settings_table import option, parse_choice, parse_int
from registry.redis.server_address import parse_redis_url


def _url_template(text: str) -> str:
    try:
        text.format(namespace="team", name="model")
    except (LookupError, ValueError) as error:
        raise ValueError(
            f"must be a URL with no placeholders but {{namespace}} and {{name}}, was {text!r}"
        ) from error
    return text


def _service(text: str) -> str:
    name, _, port = text.partition(":")
    if text and not (name and port.isdigit() and 0 < int(port) < 65536):
        raise ValueError(f"must be NAME:PORT of a Service, was {text!r}")
    return text


def _gateways(text: str) -> tuple[str, ...]:
    named = tuple(sorted(_names(text)))
    if not all(re.fullmatch("[^/]+/[^/]+", each) for each in named):
        raise ValueError(f"must be NAMESPACE/NAME of Gateways, separated by commas, was {text!r}")
    return named


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Settings of the controller. Times in seconds."""

    redis_url: str = option("redis://127.0.0.1:6379", parse_redis_url, "the registry")
    namespace: str = option("pilotlight", str, "namespace of the controller, its lease and Secret")
    pool_namespaces: str = option(
        "",
        str,
        "namespaces whose InferenceServices may be pools, separated by commas; empty: that"
        " of the controller",
    )
    watch_namespaces: str = option(
        "",
        str,
        "namespaces whose models are served, separated by commas, with that of the"
        " controller; empty: all, which needs a ClusterRole",
    )
    port: int = option(8080, parse_int(0, 65535), "port of /healthz, /readyz and /metrics")
    webhook_port: int = option(9443, parse_int(0, 65535), "port of the admission webhooks; 0: none")
    external_metrics_port: int = option(
        0,
        parse_int(0, 65535),
        "port of the external metrics API, with the webhooks' certificate; 0: none",
    )
    certificates: str = option(
        "",
        str,
        "folder with tls.crt and tls.key for the webhooks, such as a mounted Secret of"
        " cert-manager; empty: self-signed certificates, kept in a Secret",
    )
    url: str = option(
        "http://pilotlight-gateway.pilotlight.svc.cluster.local/serving/{namespace}/{name}",
        _url_template,
        "template of a model's status.url, with {namespace} and {name}",
    )
    address: str = option(
        "http://pilotlight-gateway.pilotlight.svc.cluster.local/serving/{namespace}/{name}",
        _url_template,
        "template of a model's status.address.url, inside the cluster",
    )
    auth: str = option(
        "auto", parse_choice("auto", "open"), "as the gateways'; open: models' Ready says so"
    )
    picker_service: str = option(
        "",
        _service,
        "NAME:PORT of the endpoint picker's Service in the controller's namespace: its pools get"
        " InferencePools, where that kind is installed; empty: none",
    )
    ingress_gateways: tuple[str, ...] = option(
        ("kserve/kserve-ingress-gateway",),
        _gateways,
        "NAMESPACE/NAME of the Gateways whose HTTPRoutes lead to those InferencePools, as KServe's"
        " kserveIngressGateway, separated by commas; empty: no HTTPRoutes",
    )
    log_level: str = option("INFO", str, "minimum level of log messages")

    @property
    def trusted_namespaces(self) -> frozenset[str]:
        """The namespaces of pools: ConfigMaps there say what tenants may do."""
        return _names(self.pool_namespaces) or frozenset({self.namespace})

    @property
    def watched_namespaces(self) -> tuple[str, ...]:
        """The namespaces to read; empty: all."""
        named = _names(self.watch_namespaces)
        return tuple(sorted(named | self.trusted_namespaces)) if named else ()


def _names(text: str) -> frozenset[str]:
    return frozenset(each.strip() for each in text.split(",")) - {""}
