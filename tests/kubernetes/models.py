"""Models of a tenant, created and called as a user does."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx

from tests.kubernetes.kubectl import Answer, Kubectl
from tests.kubernetes.object_store import MODEL_URI
from tests.servers import wait_until

CALL_TIMEOUT_S = 300.0


def model_object(
    namespace: str, name: str, annotations: Mapping[str, str] | None = None, *, uri: str = MODEL_URI
) -> dict[str, Any]:
    """The InferenceService of a model, without the mode, which the webhook adds."""
    ours = {"pilotlight.io/pool": "default"}
    model = {"modelFormat": {"name": "huggingface"}, "protocolVersion": "v2", "storageUri": uri}
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "annotations": {**ours, **(annotations or {})},
        },
        "spec": {"predictor": {"model": model}},
    }


@cache
def token(
    kubectl: Kubectl, namespace: str, account: str = "default", audience: str = "pilotlight"
) -> str:
    """Of `kubectl create token`, for longer than the tests take."""
    kubectl.wait("create", "-n", namespace, f"serviceaccount/{account}")
    command = ("create", "token", account, "-n", namespace, "--audience", audience)
    return kubectl(*command, "--duration", "12h").strip()


@dataclass(frozen=True, slots=True)
class Tenant:
    """A namespace with models."""

    kubectl: Kubectl
    namespace: str

    def declare(self, name: str, *, uri: str = MODEL_URI, **annotations: str) -> None:
        """Apply a model; keywords are annotations of `pilotlight.io/`, with underscores."""
        self.kubectl.apply([self._object(name, annotations, uri)])

    def declare_with_retry(self, name: str) -> None:
        """Apply a model, and retry while the webhooks are unavailable."""
        wait_until(lambda: self.try_declare(name).is_ok, what=f"model {name} is accepted")

    def try_declare(self, name: str, **annotations: str) -> Answer:
        """The output of kubectl for a model that may be rejected."""
        return self.kubectl.try_apply([self._object(name, annotations)])

    def _object(
        self, name: str, annotations: Mapping[str, str], uri: str = MODEL_URI
    ) -> dict[str, Any]:
        ours = {f"pilotlight.io/{key.replace('_', '-')}": text for key, text in annotations.items()}
        return model_object(self.namespace, name, ours, uri=uri)

    def wait_ready(self, name: str) -> None:
        """Wait with `kubectl wait`, as a user does."""
        self.kubectl.wait("condition=Ready", "-n", self.namespace, f"inferenceservice/{name}")

    def delete(self, name: str) -> None:
        """Delete a model and wait until its object is gone."""
        self.kubectl("delete", "-n", self.namespace, "inferenceservice", name)

    def credentials(self) -> dict[str, str]:
        """The header of a request to the namespace's models, as docs/kubernetes.md makes it."""
        return {"authorization": f"Bearer {token(self.kubectl, self.namespace)}"}

    def status(self, name: str) -> dict[str, Any]:
        found = self.kubectl.get("-n", self.namespace, "inferenceservice", name)
        return dict(found.get("status", {}))


@dataclass(frozen=True, slots=True)
class Gateway:
    """The gateway's Service."""

    url: str

    def predict(
        self,
        tenant: Tenant,
        name: str,
        *instances: object,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Call a model by protocol V1."""
        path = f"/serving/{tenant.namespace}/{name}/v1/models/{name}:predict"
        return httpx.post(
            self.url + path,
            json={"instances": instances or ["hello"]},
            headers={**tenant.credentials(), **(headers or {})},
            timeout=CALL_TIMEOUT_S,
            trust_env=False,
            verify=False,  # plain HTTP; reading the CA certificates takes longer than the call
        )
