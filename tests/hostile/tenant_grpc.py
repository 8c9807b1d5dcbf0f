"""A tenant's gRPC calls to a pod that serves another's model, without the pods' secret."""

import random
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc

from common.inference_protocol.grpc_messages import messages
from common.pod_secret import HEADER
from pilotlight.sample_models.make_model import make_model
from registry.domain.model import ModelName, ModelSpec
from tests import servers
from tests.registry.redis.clients import act
from tests.runtime import rpc

PODS_SECRET: Final = "secret-of-the-pods-16"
_OPEN: Final = frozenset({"ServerLive", "ServerReady"})
"""For probes; their responses name no model."""
_METHODS: Final = (
    "ModelInfer", "ModelInfer", "ModelMetadata", "ModelReady", "ServerMetadata", "ServerLive",
    "ServerReady", "RepositoryModelLoad", "RepositoryModelUnload", "RepositoryIndex", "Unknown",
)  # fmt: skip
_NAMES: Final = (
    "blue~hidden", "hidden", "blue/hidden", "red~own/../blue~hidden", "blue%7ehidden",
    "BLUE~hidden", "blue~hidden\x00", "red~hidden", "", "blue~hidden@1", " blue~hidden",
)  # fmt: skip
_SECRETS: Final = (
    "", "x", PODS_SECRET[:-1], f"{PODS_SECRET}x", PODS_SECRET.upper(),
    PODS_SECRET[::-1], "red-key-red-key-red", "null", "*",
)  # fmt: skip
_METADATA: Final = (
    ("x-pilotlight-stage", "infer"), ("x-pilotlight-generation", "1"),
    ("x-pilotlight-reservation", "x"), ("x-pilotlight-model-name", "own"),
    ("x-pilotlight-predict", "127.0.0.1:1"), ("authorization", "Bearer red-key-red-key-red"),
    ("mm-model-id", "blue~hidden"), ("x-tenant", "blue"), ("x-pilotlight-secret-bin", "x"),
    ("user-agent", "kube-probe/1.30"), ("x-forwarded-for", "127.0.0.1"),
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    method: str
    content: bytes
    metadata: tuple[tuple[str, str | bytes], ...]


@dataclass
class GrpcTarget:
    pod: servers.Pod
    channel: grpc.Channel = field(repr=False)

    def draw(self, draws: random.Random) -> Call:
        method, name = draws.choice(_METHODS), draws.choice(_NAMES)
        metadata: list[tuple[str, str | bytes]] = list(
            draws.sample(_METADATA, draws.randrange(0, 3))
        )
        metadata = [
            (key, value.encode() if key.endswith("-bin") and isinstance(value, str) else value)
            for key, value in metadata
        ]
        for _ in range(draws.choice([0, 1, 1, 2])):
            metadata.append((HEADER, draws.choice(_SECRETS)))
        return Call(method, _message(method, name).SerializeToString(), tuple(metadata))

    def attempt(self, call: Call) -> tuple[str, str]:
        """The code of the response, and what it discloses; empty: nothing."""
        send = self.channel.unary_unary(f"/inference.GRPCInferenceService/{call.method}")
        try:
            answer: bytes = send(call.content, timeout=30, metadata=call.metadata)
        except grpc.RpcError as error:
            code, details = error.code().name, str(error.details())
            is_known = code in {"UNAUTHENTICATED", "UNIMPLEMENTED"}
            return code, "" if is_known else f"{code}: {details[:300]}"
        is_open = call.method in _OPEN and b"hidden" not in answer
        return "OK", "" if is_open else f"an answer of {call.method}: {answer[:300]!r}"

    def end(self) -> str:
        """What the pod's log discloses, at the end; empty: nothing."""
        log = self.pod.log
        is_bad = "Traceback" in log or PODS_SECRET in log
        return f"the pod's log has a traceback or the secret: {log[-2000:]}" if is_bad else ""


def _message(method: str, name: str) -> Any:
    match method:
        case "ModelInfer":
            return rpc.infer_texts(name, "x")
        case "ModelMetadata" | "ModelReady":
            return getattr(messages, f"{method}Request")(name=name)
        case "RepositoryModelLoad" | "RepositoryModelUnload":
            return getattr(messages, f"{method}Request")(model_name=name)
        case _:
            return messages.ServerMetadataRequest()


def start_grpc(stack: ExitStack, folder: Path, redis_url: str) -> GrpcTarget:
    """A pod with a secret; blue's model answers calls that have it."""
    uri = make_model("tiny-bert", folder / "model").as_uri()
    spec = ModelSpec(ModelName("blue", "hidden"), uri)
    act(redis_url, "grpc", lambda registry: registry.put_models([spec]))
    secret, port = folder / "secret", servers.free_port()
    secret.write_text(PODS_SECRET)
    parent = stack.enter_context(servers.forkserver({"OMP_NUM_THREADS": "1"}))
    pod = stack.enter_context(
        servers.pod(
            parent,
            name="pod-grpc",
            redis_url=redis_url,
            pool="grpc",
            folder=folder / "pod",
            grpc_port=port,
            pod_secret_file=str(secret),
            lease_ttl=30.0,
        )
    )
    served = rpc.call(
        port, "ModelInfer", rpc.infer_texts("blue~hidden", "x"), x_pilotlight_secret=PODS_SECRET
    )
    assert served.outputs
    return GrpcTarget(pod, stack.enter_context(rpc.channel(port)))
