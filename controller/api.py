"""Calls to the Kubernetes API server with the official client, their errors, and the metrics.

Writes are patches of single fields. The names of the classes of errors are metric labels.
"""

import datetime
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Any

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.client.exceptions import ApiException
from prometheus_client import Counter, Gauge

from controller.resources import RESOURCES, ApplicationObject, Kind, ServiceObject, read_service
from registry.domain.model import ModelName

logger = logging.getLogger(__name__)


class KubernetesError(Exception):
    """Root of the errors of this package."""


class ClusterUnreachable(KubernetesError):
    """The API server did not respond, or failed. Retried later."""


class Changed(KubernetesError):
    """The object has changed since it was read: read it again."""


class Gone(KubernetesError):
    """The object does not exist."""


class Denied(KubernetesError):
    """The API server refused the call."""


class PoolNotFound(KubernetesError):
    """No InferenceService, or more than one, has the pool's label."""


STATUS_WRITES = Counter("pilotlight_controller_status_writes_total", "Statuses of models written")
FAILURES = Counter(
    "pilotlight_controller_failures_total", "Failed operations by error class", ["cause"]
)
IS_LEADING = Gauge("pilotlight_controller_leading", "1 while this replica leads")
MODELS = Gauge("pilotlight_controller_models", "Models of pools, of both kinds")


TIMEOUT_S = 15.0
LIST_TIMEOUT_S = 60.0
_JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
_APPLY_PATCH = "application/apply-patch+yaml"
_MAX_MESSAGE = 1024
"""The API server refuses events with longer messages."""


async def connect(context: str | None = None) -> client.ApiClient:
    """A client with the pod's service account, or with the kubeconfig outside a cluster.

    With `context`, with that one of the kubeconfig. Raises ConfigException if there is none.
    """
    configuration = client.Configuration()
    configuration.connection_pool_maxsize = 0  # unlimited: each watch keeps a connection
    if context is None:
        with suppress(config.ConfigException):
            config.load_incluster_config(client_configuration=configuration)
            return client.ApiClient(configuration)
    await config.load_kube_config(context=context, client_configuration=configuration)
    return client.ApiClient(configuration)


async def read_json(api: client.ApiClient, path: str, *, kind: str = _JSON, **query: str) -> Any:
    """The document at a path, in a media type. Raises KubernetesError."""
    with api_errors("read", path):
        response = await open_response(
            api, "GET", path, {"Accept": kind}, query, timeout_s=LIST_TIMEOUT_S
        )
        return json.loads(await response.read())


async def request(
    api: client.ApiClient,
    method: str,
    path: str,
    subject: object,
    body: object = None,
    *,
    content_type: str = _JSON,
    **query: str,
) -> Any:
    """The document of the response; `subject` as in `api_errors`. Raises KubernetesError."""
    headers = {"Accept": _JSON, "Content-Type": content_type}
    with api_errors(method.lower(), subject):
        response = await open_response(api, method, path, headers, query, body)
        return json.loads(await response.read())


async def open_response(
    api: client.ApiClient,
    method: str,
    path: str,
    headers: Mapping[str, str],
    query: Mapping[str, str],
    body: object = None,
    *,
    timeout_s: float = TIMEOUT_S,
) -> aiohttp.ClientResponse:
    """With its body still to be read. Raises the client's errors."""
    made = await api.param_serialize(
        method,
        path,
        query_params=list(query.items()),
        header_params=dict(headers),
        body=body,
        auth_settings=["BearerToken"],
    )
    called = await api.call_api(*made, _request_timeout=timeout_s)
    response: aiohttp.ClientResponse = called.response
    if response.status >= HTTPStatus.BAD_REQUEST:
        raise ApiException(response.status, response.reason, body=await response.read())
    return response


def path_of(kind: Kind, namespace: str = "", name: str = "") -> str:
    """Of one object, or of all of a kind, in a namespace or (empty) in all."""
    group, version, plural = RESOURCES[kind]
    root = f"/apis/{group}/{version}" if group else f"/api/{version}"
    scope = f"/namespaces/{namespace}" if namespace else ""
    return f"{root}{scope}/{plural}" + (f"/{name}" if name else "")


class StoredObject:
    """An object of the installation that the controller creates and replaces as a whole."""

    def __init__(self, group: object, kind: str, name: str, namespace: str) -> None:
        """`group`: the client of the API group; `kind` as its methods name it, as `config_map`."""
        self._group = group
        self._kind = kind
        self._name = name
        self._namespace = namespace

    async def read(self) -> Any | None:
        """None: there is none. Raises KubernetesError."""
        with suppress(Gone):
            return await self._call("read", name=self._name)
        return None

    async def write(self, body: Any) -> Any:
        """Create it, or replace the version that `body` names. Raises Changed, KubernetesError."""
        if body.metadata.resource_version is None:
            return await self._call("create", body=body)
        return await self._call("replace", name=self._name, body=body)

    async def _call(self, verb: str, **arguments: object) -> Any:
        operation = getattr(self._group, f"{verb}_namespaced_{self._kind}")
        with api_errors(f"{verb} the {self._kind}", self._name):
            return await operation(
                namespace=self._namespace, _request_timeout=TIMEOUT_S, **arguments
            )


class ClusterApi:
    """Patches InferenceServices and Models, and posts events, for controller and autoscaler."""

    def __init__(self, api: client.ApiClient, *, component: str, instance: str) -> None:
        self._client = api
        self._component = component
        self._instance = instance

    async def write_status(
        self, about: ServiceObject | ApplicationObject, status: Mapping[str, Any]
    ) -> Any:
        """Replace the whole status; returns the new object's document. Raises Gone, Changed."""
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": about.uid},
            {"op": "add", "path": "/status", "value": status},
        ]
        path, subject = f"{_path_of(about)}/status", f"the status of {about.name}"
        return await request(self._client, "PATCH", path, subject, patch, content_type=JSON_PATCH)

    async def apply_owned(self, wanted: Mapping[str, Any]) -> None:
        """Make or change an object of a model (server-side apply).

        Raises Denied, also for one of that name that is not the model's, KubernetesError.
        """
        if not await self._is_owned(wanted):
            owner, name = wanted["metadata"]["ownerReferences"][0], wanted["metadata"]["name"]
            text = f"{wanted['kind']} {name} exists and is not that of this {owner['kind']}"
            raise Denied(text)
        await request(
            self._client,
            "PATCH",
            _path(wanted),
            f"{wanted['kind']} {wanted['metadata']['name']}",
            wanted,
            content_type=_APPLY_PATCH,
            fieldManager=self._component,
            force="true",
        )

    async def delete_owned(self, unwanted: Mapping[str, Any]) -> None:
        """Unless it is not there, or not the model's. Raises KubernetesError."""
        with suppress(Gone):
            if await self._is_owned(unwanted):
                await request(self._client, "DELETE", _path(unwanted), unwanted["kind"])

    async def _is_owned(self, about: Mapping[str, Any]) -> bool:
        """False for an object of that name that is not the model's."""
        try:
            found = await self.read_owned(about)
        except Gone:
            return True
        owners = [each["uid"] for each in found["metadata"].get("ownerReferences", ())]
        return about["metadata"]["ownerReferences"][0]["uid"] in owners

    async def read_owned(self, about: Mapping[str, Any]) -> Any:
        """Raises Gone, KubernetesError."""
        subject = f"{about['kind']} {about['metadata']['name']}"
        return await request(self._client, "GET", _path(about), subject)

    async def set_finalizers(
        self, service: ServiceObject, finalizers: Sequence[str]
    ) -> ServiceObject:
        """Set the finalizers; returns the new object. Raises Changed if it has changed, Gone."""
        metadata = {"finalizers": list(finalizers), "resourceVersion": service.resource_version}
        path, subject = _path_of(service), f"the finalizers of {service.name}"
        patch = {"metadata": metadata}
        return read_service(
            await request(self._client, "PATCH", path, subject, patch, content_type=MERGE_PATCH)
        )

    async def post_event(
        self,
        about: ModelName,
        uid: str,
        *,
        reason: str,
        message: str,
        is_warning: bool,
        kind: tuple[str, str],
    ) -> None:
        """`kind`: API version and kind of the object.

        An event that is refused, as with a full quota or in an ending namespace, is only logged.
        """
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = message if len(message) <= _MAX_MESSAGE else message[: _MAX_MESSAGE - 1] + "…"
        names = {"name": about.name, "namespace": about.namespace, "uid": uid}
        event = {
            "metadata": {"generateName": f"{about.name}.", "namespace": about.namespace},
            "involvedObject": {"apiVersion": kind[0], "kind": kind[1], **names},
            "type": "Warning" if is_warning else "Normal",
            "reason": reason,
            "message": text,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        path = f"/api/v1/namespaces/{about.namespace}/events"
        try:
            await request(self._client, "POST", path, f"an event about {about}", event)
        except (Changed, Denied) as error:
            FAILURES.labels(cause=type(error).__name__).inc()
            logger.warning("event refused", extra={"about": str(about)}, exc_info=error)


def _path(about: Mapping[str, Any]) -> str:
    """Of an object that is made for a model."""
    metadata, version = about["metadata"], about["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{root}/namespaces/{metadata['namespace']}/{about['kind'].lower()}s/{metadata['name']}"


def _path_of(about: ServiceObject | ApplicationObject) -> str:
    return path_of(about.kind, about.name.namespace, about.name.name)


@contextmanager
def api_errors(action: str, subject: object) -> Iterator[None]:
    """Translate errors of the client. `action` and `subject` complete "could not …"."""
    try:
        yield
    except ApiException as error:
        raise _to_error(error, action, subject) from error
    except (TimeoutError, aiohttp.ClientError, OSError, json.JSONDecodeError) as error:
        raise ClusterUnreachable(f"the API server did not respond: {error}") from error


def _to_error(error: ApiException, action: str, subject: object) -> Exception:
    text = f"could not {action} {getattr(subject, 'name', subject)}: {_message(error)}"
    if error.status == HTTPStatus.NOT_FOUND:
        return Gone(text)
    if error.status in (HTTPStatus.CONFLICT, HTTPStatus.UNPROCESSABLE_ENTITY):
        return Changed(text)
    if error.status in (HTTPStatus.FORBIDDEN, HTTPStatus.BAD_REQUEST):
        return Denied(text)
    return ClusterUnreachable(text)


def _message(error: ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, TypeError, KeyError):
        return str(error.reason)
