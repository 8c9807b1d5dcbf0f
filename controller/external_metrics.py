"""The external metrics API, `external.metrics.k8s.io`, for HorizontalPodAutoscalers.

It is one APIService of the whole cluster, so the controller answers for all pools; every replica
does, leading or not. Only the API server's aggregation layer may ask, by its client certificate: it
has authenticated and authorized whoever asked it.
"""

import datetime
import logging
import ssl
from typing import Any, Final

import orjson
from kubernetes.aio import client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from common.certificates import Certificates, make_context
from common.http_server import HttpProtocol, HttpServer
from controller.api import TIMEOUT_S, Denied, api_errors
from controller.objects import ClusterObjects
from controller.pools import PoolRegistries
from registry.domain.pool_demand import REQUESTS_PER_S, WANTED_PODS, Figure, ScaleTarget
from registry.errors import NoFigures, UnknownTarget
from registry.redis.reports import PoolDemandReader

logger = logging.getLogger(__name__)

VERSION: Final = "external.metrics.k8s.io/v1beta1"
API_SERVICE: Final = "v1beta1.external.metrics.k8s.io"
_KIND: Final = "ExternalMetricValueList"
_PATH: Final = f"/apis/{VERSION}"
_CLIENTS: Final = ("extension-apiserver-authentication", "kube-system")
"""The ConfigMap that says whose certificates the aggregation layer has."""


async def aggregation_server(
    api: client.ApiClient, certificates: Certificates, metrics: "ExternalMetrics", port: int
) -> tuple[HttpServer, ssl.SSLContext]:
    """A server, not started, for the aggregation layer only. Raises KubernetesError."""
    name, namespace = _CLIENTS
    with api_errors("read the ConfigMap", name):
        found = await client.CoreV1Api(api).read_namespaced_config_map(
            name, namespace, _request_timeout=TIMEOUT_S
        )
    authority = (found.data or {}).get("requestheader-client-ca-file")
    if not authority:
        raise Denied(
            f"ConfigMap {namespace}/{name} must have requestheader-client-ca-file: the API server"
            " has no aggregation layer"
        )
    context = make_context(certificates)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    names = frozenset(orjson.loads(found.data.get("requestheader-allowed-names", "[]")))
    return HttpServer(metrics.app(), port=port, tls=context, http=_protocol(names)), context


def _protocol(names: frozenset[str]) -> type[HttpProtocol]:
    """Closes connections whose certificate has none of the common names; without any: none."""

    class NamedClients(HttpProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            subject = transport.get_extra_info("peercert")["subject"]
            common = {value for part in subject for key, value in part if key == "commonName"}
            if names and not names & common:
                logger.warning("a client was refused", extra={"names": sorted(common)})
                transport.close()

    return NamedClients


class ExternalMetrics:
    """Answers with the figures that the leading autoscalers have published."""

    def __init__(self, objects: ClusterObjects, registries: PoolRegistries) -> None:
        self._objects = objects
        self._registries = registries
        self._readers: dict[str, PoolDemandReader] = {}

    def app(self) -> Starlette:
        path = f"{_PATH}/namespaces/{{namespace}}/{{metric}}"
        return Starlette(routes=[Route(_PATH, _discovery), Route(path, self._metric)])

    async def _metric(self, request: Request) -> JSONResponse:
        namespace, metric = request.path_params["namespace"], request.path_params["metric"]
        try:
            target = _target(namespace, request.query_params.get("labelSelector", ""))
            figure = await self._figure(target)
            if metric != figure.metric:
                raise UnknownTarget(f"metric must be {figure.metric}, was {metric!r}")
        except UnknownTarget as error:
            return _status(404, "NotFound", str(error))
        except NoFigures as error:
            return _status(503, "ServiceUnavailable", str(error))
        return JSONResponse(_value_list(figure))

    async def _figure(self, target: ScaleTarget) -> Figure:
        """Raises UnknownTarget, NoFigures."""
        pools = sorted(self._objects.pools())
        if target.pool and target.pool not in pools:
            there = ", ".join(pools) or "none"
            raise UnknownTarget(f"pool must be one of: {there}; was {target.pool!r}")
        unknown = UnknownTarget("there is no pool")
        for pool in [target.pool] if target.pool else pools:
            registry = self._registries.get(pool)
            reader = self._readers.setdefault(pool, PoolDemandReader(registry.client))
            try:
                return (await reader.read()).figure(target, registry.state.models)
            except UnknownTarget as error:
                unknown = error
        raise unknown


def _target(namespace: str, selector: str) -> ScaleTarget:
    """Raises UnknownTarget."""
    pairs = [each.replace("==", "=").partition("=") for each in selector.split(",")]
    labels = {name: value for name, _, value in pairs}
    if len(pairs) != 1 or not (labels.get("pool") or labels.get("deployment")):
        raise UnknownTarget(
            f"the selector's matchLabels must be pool: NAME or deployment: NAME, was {selector!r}"
        )
    return ScaleTarget(namespace, labels.get("pool", ""), labels.get("deployment", ""))


def _value_list(figure: Figure) -> dict[str, Any]:
    at = datetime.datetime.fromtimestamp(figure.at_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    value = {"metricName": figure.metric, "metricLabels": {}, "timestamp": at}
    items = [value | {"value": f"{round(figure.value * 1000)}m"}]
    return {"kind": _KIND, "apiVersion": VERSION, "metadata": {}, "items": items}


async def _discovery(_: Request) -> JSONResponse:
    of_each = {"singularName": "", "namespaced": True, "kind": _KIND, "verbs": ["get"]}
    resources = [of_each | {"name": name} for name in (WANTED_PODS, REQUESTS_PER_S)]
    about = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": VERSION}
    return JSONResponse(about | {"resources": resources})


def _status(code: int, reason: str, message: str) -> JSONResponse:
    document = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code}
    return JSONResponse(document | {"reason": reason, "message": message}, code)
