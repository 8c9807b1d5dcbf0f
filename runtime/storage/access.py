"""How a pod reads a model's storage: with whose credentials, and from which hosts.

Credentials in a model's own namespace are read from the API server for each download, by KServe's
conventions (`pkg/credentials` of 0.20): the Secrets of a service account, an annotated Secret, or a
key of `storage-config`; without keys for S3, those of the service account's role. Only these are
kept longer than a download. A namespace allows it by a Role bound to the pods' service account.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import socket
import ssl
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import quote, unquote, urlsplit
from urllib.request import getproxies

from registry.domain.model import ModelSpec
from registry.domain.tenant_rules import EVERY, Access, TenantRules, access_problem
from runtime.errors import StorageFailed
from runtime.storage.web_identity import ROLE, RoleKeys

# Connections to public addresses only, for URIs and endpoints that a tenant chose.
#
# The address that is checked is the one that is connected to, so neither a name that resolves
# differently the second time nor a redirect leads elsewhere. An operator's own hosts may be
# private.


REFUSAL = "the host has no public address that may be connected to"
"""One text for unknown hosts, private ones and closed ports: errors map no network."""
_NAT64 = 0x64_FF9B << 96
_ENDS_AND_STARTS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn",
                              "os.fork", "os.forkpty", "os.spawn"})  # fmt: skip
_SENDS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"})


class AddressRefused(OSError):
    """A host without an address that may be connected to."""

    def __init__(self) -> None:
        super().__init__(REFUSAL)


def is_public(text: str) -> bool:
    """Whether an IP address is global unicast, also where IPv6 only wraps an IPv4 address."""
    try:
        address: IPv4Address | IPv6Address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return (
        address.is_global
        and not address.is_multicast
        and all(inner.is_global and not inner.is_multicast for inner in _wrapped(address))
    )


def _wrapped(address: IPv4Address | IPv6Address) -> Iterable[IPv4Address]:
    """The IPv4 addresses that an IPv6 address stands for: mapped, 6to4, Teredo, NAT64."""
    if isinstance(address, IPv4Address):
        return ()
    inner = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if int(address) >> 32 in (_NAT64 >> 32, 0):
        inner.append(IPv4Address(int(address) & 0xFFFF_FFFF))
    return [each for each in inner if each is not None]


def operator_hosts(environment: Mapping[str, str]) -> frozenset[str]:
    """Hosts that the pool's own environment names: its endpoints and proxies."""
    urls = [
        environment.get(name, "")
        for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "S3_ENDPOINT", "HF_ENDPOINT")
    ]
    urls += getproxies().values()
    return frozenset(host_of(url) for url in urls) - {""}


def host_of(url: str) -> str:
    """The host of a URL or `host:port`, in lower case; empty: none."""
    try:
        return urlsplit(url if "://" in url else f"//{url}").hostname or ""
    except ValueError:
        return ""


def connect_publicly(
    address: tuple[str, int], timeout: Any, hosts: frozenset[str], **options: Any
) -> socket.socket:
    """As `socket.create_connection`, to public addresses and to `hosts`.

    Raises AddressRefused, whatever the cause, except for `hosts`.
    """
    host, port = address
    if host.lower() in hosts:
        return socket.create_connection(address, timeout, **options)
    try:
        found = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    except OSError:
        raise AddressRefused from None
    targets = [target[:2] for *_, target in found]
    if not targets or not all(is_public(str(ip)) for ip, _ in targets):
        raise AddressRefused
    for target in targets:
        try:
            return socket.create_connection((str(target[0]), port), timeout, **options)
        except OSError:
            continue
    raise AddressRefused


def confine_network(hosts: frozenset[str]) -> None:
    """Let this process connect to public addresses and to `hosts` only, and start no other.

    Cannot be undone. Names are resolved by `socket.getaddrinfo`, as all of Python's libraries do; a
    connection to a name is refused, since its address could not be checked.
    """
    allowed: set[str] = set()
    resolve: Callable[..., list[Any]] = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        is_own = isinstance(name, str) and name.lower() in hosts
        try:
            found = resolve(host, *arguments, **options)
        except OSError:
            if is_own:
                raise
            raise AddressRefused from None
        if is_own:
            allowed.update(str(target[0]) for *_, target in found)
        return found

    def check(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _SENDS:
            target = arguments[1]
            ip = target[0] if isinstance(target, tuple) and target else None
            if event == "socket.bind" and ip in ("", "0.0.0.0", "::"):
                return
            if not isinstance(ip, str) or not (ip in allowed or is_public(ip)):
                _refuse()
        elif event in _ENDS_AND_STARTS:
            _refuse()

    socket.getaddrinfo = getaddrinfo
    sys.addaudithook(check)


def _refuse() -> NoReturn:
    raise AddressRefused


_FROM_POOL: Final = (
    "PATH", "HOME", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR", "HF_ENDPOINT",
    "HF_HUB_OFFLINE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CA_BUNDLE_CONFIGMAP_NAME",
    "CA_BUNDLE_VOLUME_MOUNT_POINT", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
    "https_proxy", "no_proxy",
)  # fmt: skip
"""Variables of the pod that hold no credentials, for a download with a model's own."""
_S3_FROM_POOL: Final = ("AWS_ENDPOINT_URL", "S3_ENDPOINT", "S3_USE_HTTPS", "AWS_DEFAULT_REGION",
                        "AWS_REGION", "S3_VERIFY_SSL", "AWS_CA_BUNDLE",
                        "S3_USER_VIRTUAL_BUCKET")  # fmt: skip
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL", "S3_ENDPOINT", "S3_USE_HTTPS")
_WEB_SCHEMES: Final = frozenset({"http", "https", "webhdfs", "hdfs", "oci"})
"""Schemes whose URI names the host."""
TOKEN_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TIMEOUT_S: Final = 10.0
MAX_BYTES: Final = 4 << 20
MAX_SECRETS: Final = 32
"""Of an account: each is read for every download."""
_ANNOTATION = "serving.kserve.io/s3-"
_S3_ANNOTATIONS = {
    "endpoint": "S3_ENDPOINT",
    "usehttps": "S3_USE_HTTPS",
    "region": "AWS_DEFAULT_REGION",
    "verifyssl": "S3_VERIFY_SSL",
    "usevirtualbucket": "S3_USER_VIRTUAL_BUCKET",
    "useaccelerate": "S3_USE_ACCELERATE",
    "useanoncredential": "awsAnonymousCredential",
}
"""Annotations of a Secret with S3 keys. Files with certificates are not read from them: they would
name files of the pod."""
GOOGLE_FILE = "gcloud-application-credentials.json"
_AS_VARIABLES = ("HF_TOKEN", "MODELSCOPE_API_TOKEN")
_AZURE = ("AZURE_", "AZ_")


HOW_TO_GRANT: Final = (
    "for the pool's credentials, its operator may grant the prefix in the tenant's ConfigMap (the"
    " chart's pools[].storagePrefixes)"
)


@dataclass(frozen=True, slots=True)
class StorageAccess:
    """The environment of one model's downloads, and the hosts they may connect to."""

    environment: Mapping[str, str] = field(repr=False)
    is_pool: bool
    """Whether the environment is the pool's own."""
    hosts: frozenset[str] | None = None
    """Only public addresses and these hosts; None: any."""
    folder: str = ""
    """Of file://, or of pvc:// below the mounts: nothing outside it is read; empty: any."""
    google: str = field(default="", repr=False)
    """A file of Google's credentials."""
    credentials: str = ""
    """For messages: what was used, if not the pool's."""

    def describe(self) -> str:
        """With what a model was read, and how the pool's credentials would be; empty: with them."""
        return f"it was read with {self.credentials}; {HOW_TO_GRANT}" if self.credentials else ""


def storage_access(
    spec: ModelSpec,
    rules: TenantRules | None,
    environment: Mapping[str, str],
    secrets: NamespaceSecrets | None,
) -> StorageAccess:
    """The access of a model by the pool's rules; None: the pool has one owner, who may do anything.

    Raises StorageFailed if the rules forbid the model, or its credentials cannot be read.
    """
    if rules is None:
        return StorageAccess(environment, is_pool=True)
    if reader_of(spec, rules) == "":
        return _pool_access(spec, rules, environment)
    return _model_access(spec, environment, secrets)


def reader_of(spec: ModelSpec, rules: TenantRules | None) -> str:
    """Who reads a model's storage: empty for the pool, else names the model's own credentials.

    Raises StorageFailed if the rules forbid the model.
    """
    access = Access.POOL if rules is None else rules.access(spec)
    if rules is not None and access is None:
        raise StorageFailed(access_problem(spec, rules, spec.pool) or "not granted")
    return f"model:{spec.credentials}" if access is Access.MODEL else ""


def _pool_access(
    spec: ModelSpec, rules: TenantRules, environment: Mapping[str, str]
) -> StorageAccess:
    prefix = rules.granting_prefix(spec.name.namespace, spec.storage_uri) or EVERY
    scheme = urlsplit(spec.storage_uri).scheme
    if scheme in _WEB_SCHEMES:
        named = frozenset({host_of(prefix)} if prefix != EVERY else ()) - {""}
        hosts = operator_hosts(environment) | named
        return StorageAccess(environment, is_pool=True, hosts=hosts)
    return StorageAccess(environment, is_pool=True, folder=_granted_folder(scheme, prefix))


def _granted_folder(scheme: str, prefix: str) -> str:
    if scheme not in {"file", "pvc"} or prefix == EVERY:
        return ""
    parts = urlsplit(prefix)
    return parts.netloc + unquote(parts.path)


def _model_access(
    spec: ModelSpec, environment: Mapping[str, str], secrets: NamespaceSecrets | None
) -> StorageAccess:
    found = ModelCredentials()
    if spec.credentials:
        if secrets is None:
            raise StorageFailed(
                f"the model names its own credentials ({spec.credentials}), which pods read from"
                " the Kubernetes API server with a token of their service account: set"
                " automountServiceAccountToken in the pool's InferenceService"
            )
        is_s3 = urlsplit(spec.storage_uri).scheme == "s3"
        found = secrets.read(spec.name.namespace, spec.credentials, is_s3=is_s3)
    names = (*_FROM_POOL, *(_S3_FROM_POOL if urlsplit(spec.storage_uri).scheme == "s3" else ()))
    base = {name: environment[name] for name in names if name in environment}
    if found.variables.keys() & set(_ENDPOINTS):
        for name in _ENDPOINTS:
            base.pop(name, None)
    return StorageAccess(
        {**base, **found.variables},
        is_pool=False,
        hosts=operator_hosts(environment),
        google=found.google,
        credentials=spec.credentials or "no credentials",
    )


@dataclass(frozen=True, slots=True)
class ModelCredentials:
    """What a model's namespace gives to read its storage; without secrets in its repr."""

    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    """As KServe names them in the environment of its storage initializer."""
    google: str = field(default="", repr=False)
    """A file of Google's credentials."""


class NamespaceSecrets:
    """Reads service accounts and Secrets with the pod's own token."""

    def __init__(
        self,
        host: str,
        port: int,
        token_folder: Path = TOKEN_FOLDER,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._host, self._port, self._folder = host, port, token_folder
        self._role_keys = RoleKeys(environment or {})

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> NamespaceSecrets | None:
        """The reader of a pod on a cluster; None elsewhere, or without a token."""
        host = environment.get("KUBERNETES_SERVICE_HOST")
        if not host or not (TOKEN_FOLDER / "token").is_file():
            return None
        port = int(environment.get("KUBERNETES_SERVICE_PORT") or 443)
        return cls(host, port, environment=environment)

    def read(self, namespace: str, credentials: str, *, is_s3: bool) -> ModelCredentials:
        """The credentials that `ModelSpec.credentials` names; raises StorageFailed."""
        kind, _, name = credentials.partition("/")
        match kind:
            case "serviceaccount":
                return self._of_account(namespace, name, is_s3=is_s3)
            case "secret":
                return _of_secrets([self._call(namespace, "secrets", name)])
            case "storage-config":
                secret, _, key = name.partition("/")
                return self._of_storage_config(namespace, secret, key)
            case _:
                raise StorageFailed(f"credentials {credentials!r} are of an unknown kind")

    def _of_account(self, namespace: str, name: str, *, is_s3: bool) -> ModelCredentials:
        account = self._call(namespace, "serviceaccounts", name)
        listed = (each.get("name") for each in account.get("secrets") or ())
        names = dict.fromkeys(str(each) for each in listed if each)
        if len(names) > MAX_SECRETS:
            raise StorageFailed(
                f"service account {namespace}/{name} must have at most {MAX_SECRETS} Secrets under"
                f" `secrets`, was {len(names)}: keep those with storage credentials"
            )
        found = _of_secrets([self._call(namespace, "secrets", each) for each in names])
        annotations = account["metadata"].get("annotations") or {}
        if is_s3 and ROLE in annotations and "AWS_ACCESS_KEY_ID" not in found.variables:
            make_token = partial(self._make_token, namespace, name)
            keys = self._role_keys.of(f"{namespace}/{name}", annotations, make_token)
            return replace(found, variables={**found.variables, **keys})
        if not found.variables and not found.google:
            raise StorageFailed(
                f"service account {namespace}/{name} names no Secret with storage credentials, and"
                f" has no role for S3: add one under `secrets`, or the annotation {ROLE}"
            )
        return found

    def _make_token(self, namespace: str, name: str, audience: str) -> str:
        """A token of a service account, for 10 minutes."""
        spec = {"audiences": [audience], "expirationSeconds": 600}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        made = self._call(namespace, "serviceaccounts", name, "token", request)
        return str(made["status"]["token"])

    def _of_storage_config(self, namespace: str, name: str, key: str) -> ModelCredentials:
        data = _data(self._call(namespace, "secrets", name))
        try:
            stored = json.loads(data[key])
        except KeyError:
            raise StorageFailed(f"Secret {namespace}/{name} has no key {key!r}") from None
        except ValueError:
            stored = None
        if not isinstance(stored, dict):
            raise StorageFailed(f"Secret {namespace}/{name}: {key!r} must be a JSON object")
        stored.pop("ca_bundle", None)  # would name a file of the pod
        return ModelCredentials({"STORAGE_CONFIG": json.dumps({"type": "s3", **stored})})

    def _call(
        self, namespace: str, kind: str, name: str, part: str = "", body: object = None
    ) -> dict[str, Any]:
        """GET of an object, or POST of `body` to a part of it."""
        resource, verb = (f"{kind}/{part}", "create") if part else (kind, "get")
        path = f"/api/v1/namespaces/{quote(namespace, '')}/{kind}/{quote(name, '')}"
        path += f"/{part}" if part else ""
        try:
            token = (self._folder / "token").read_text().strip()  # rotated by the kubelet
            context = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=TIMEOUT_S, context=context
            )
            try:
                headers = {"authorization": f"Bearer {token}", "accept": "application/json"}
                headers["content-type"] = "application/json"
                sent = None if body is None else json.dumps(body)
                connection.request("GET" if sent is None else "POST", path, sent, headers)
                response = connection.getresponse()
                answer = response.read(MAX_BYTES)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise StorageFailed(f"the API server did not respond: {error}") from error
        if response.status in (http.HTTPStatus.OK, http.HTTPStatus.CREATED):
            found: dict[str, Any] = json.loads(answer)
            return found
        if response.status == http.HTTPStatus.NOT_FOUND:
            raise StorageFailed(f"{namespace} has no object {name!r} among its {kind}")
        role = f"pilotlight-{resource.replace('/', '-')}"
        raise StorageFailed(
            f"the pool may not {verb} {resource} {name!r} of namespace {namespace!r}"
            f" ({response.status}); allow it: kubectl -n {namespace} create role {role}"
            f" --verb={verb} --resource={resource} --resource-name={name} && kubectl -n {namespace}"
            f" create rolebinding {role} --role={role}"
            " --serviceaccount=pilotlight:pilotlight-runtime"
        )


def _of_secrets(secrets: list[Mapping[str, Any]]) -> ModelCredentials:
    variables: dict[str, str] = {}
    google = ""
    for secret in secrets:
        data = _data(secret)
        if "awsSecretAccessKey" in data:
            variables |= _s3_variables(secret["metadata"].get("annotations") or {}, data)
        elif GOOGLE_FILE in data:
            google = data[GOOGLE_FILE]
        else:
            variables |= {
                key: text
                for key, text in data.items()
                if key in _AS_VARIABLES or key.startswith(_AZURE)
            }
    return ModelCredentials(variables, google)


def _s3_variables(annotations: Mapping[str, str], data: Mapping[str, str]) -> dict[str, str]:
    """An annotation comes before the Secret's entry of the variable's name."""
    found = {
        name: value
        for key, name in _S3_ANNOTATIONS.items()
        if (value := annotations.get(_ANNOTATION + key, data.get(name)))
    }
    return found | {
        "AWS_ACCESS_KEY_ID": data.get("awsAccessKeyID", ""),
        "AWS_SECRET_ACCESS_KEY": data["awsSecretAccessKey"],
    }


def _data(secret: Mapping[str, Any]) -> dict[str, str]:
    """The entries of a Secret that are texts."""
    found = {}
    for key, encoded in (secret.get("data") or {}).items():
        try:
            found[str(key)] = base64.b64decode(encoded).decode()
        except (ValueError, binascii.Error):
            continue
    return found
