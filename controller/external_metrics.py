"""The external metrics API, `external.metrics.k8s.io`, for HorizontalPodAutoscalers.

It is one APIService of the whole cluster, so the controller answers for all pools; every replica
does, leading or not. Only the API server's aggregation layer may ask, by its client certificate: it
has authenticated and authorized whoever asked it.
"""

import datetime
import logging
import ssl
from collections.abc import Mapping
from typing import Any, Final

import orjson
from kubernetes.aio import client
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from common.certificates import Certificates, make_context
from common.http_server import HttpProtocol, HttpServer
from controller.api import Denied, read_json
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
    found = await read_json(api, f"/api/v1/namespaces/{namespace}/configmaps/{name}")
    data = found.get("data") or {}
    if not (authority := data.get("requestheader-client-ca-file")):
        raise Denied(
            f"ConfigMap {namespace}/{name} must have requestheader-client-ca-file: the API server"
            " has no aggregation layer"
        )
    context = make_context(certificates)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=authority)
    protocol = _protocol(allowed_names(data))
    return HttpServer(metrics.app(), port=port, tls=context, http=protocol), context


def allowed_names(data: Mapping[str, str]) -> frozenset[str]:
    """Common names of the aggregation layer's certificates; none: any. Of the ConfigMap's data."""
    return frozenset(orjson.loads(data.get("requestheader-allowed-names") or "[]") or ())


def _protocol(names: frozenset[str]) -> type[HttpProtocol]:
    """Drops connections whose certificate has none of the names, if there are any."""

    class NamedClients(HttpProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            subject = transport.get_extra_info("peercert")["subject"]
            common = {value for part in subject for key, value in part if key == "commonName"}
            if names and not names & common:
                logger.warning("a client was refused", extra={"names": sorted(common)})
                transport.abort()  # a close would still take what was sent with the handshake

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
            if metric != target.metric:
                raise UnknownTarget(f"metric must be {target.metric}, was {metric!r}")
            return JSONResponse(_value_list(metric, await self._figure(target)))
        except UnknownTarget as error:
            return _status(404, "NotFound", str(error))
        except NoFigures as error:
            return _status(503, "ServiceUnavailable", str(error))

    async def _figure(self, target: ScaleTarget) -> Figure:
        """Raises UnknownTarget, NoFigures."""
        models = {each: self._registries.get(each).state.models for each in self._objects.pools()}
        pool = target.pool
        if not pool:
            name = target.model(frozenset().union(*models.values()))
            pool = next(each for each, known in models.items() if name in known)
        if pool not in models:
            there = ", ".join(sorted(models)) or "none"
            raise UnknownTarget(f"pool must be one of: {there}; was {pool!r}")
        if pool not in self._readers:
            self._readers[pool] = PoolDemandReader(self._registries.get(pool).client)
        return (await self._readers[pool].read()).figure(target, models[pool])


def _target(namespace: str, selector: str) -> ScaleTarget:
    """Raises UnknownTarget."""
    pairs = [each.replace("==", "=").partition("=") for each in selector.split(",")]
    labels = {name: value for name, _, value in pairs}
    if len(pairs) != 1 or not (labels.get("pool") or labels.get("deployment")):
        raise UnknownTarget(
            f"the selector's matchLabels must be pool: NAME or deployment: NAME, was {selector!r}"
        )
    return ScaleTarget(namespace, labels.get("pool", ""), labels.get("deployment", ""))


def _value_list(metric: str, figure: Figure) -> dict[str, Any]:
    at = datetime.datetime.fromtimestamp(figure.at_s, datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    value = {"metricName": metric, "metricLabels": {}, "timestamp": at}
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
