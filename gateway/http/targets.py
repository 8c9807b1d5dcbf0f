"""What an inference request is for: a model, and the request's path at its pods."""

from dataclasses import dataclass, field, replace

from gateway.http.model_host import ComponentTarget, Verb, kserve_path
from registry.domain.canaries import Canary
from registry.domain.model import ModelName


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """The model of an inference request, and the request's path at a pod."""

    model: ModelName
    name: str
    """The model's name as the caller wrote it, for `model_name` in the response."""
    verb: Verb | None = None
    """None for OpenAI's protocol."""
    openai_endpoint: str | None = None
    """Key of `openai.ENDPOINTS`; None for KServe's protocols."""
    is_named: bool = True
    """False if neither path nor Host names the model; then the body does."""
    version: bytes = b""
    """Name of the selected version, where the model has canaries."""
    canaries: tuple[Canary, ...] = ()
    selection_lines: bytes = b""
    """Header lines of the response about the variant, where the target is an application."""
    without_host: "ModelTarget | None" = None
    """The target that the path alone names, where the Host named the model."""
    is_plain: bool = False
    """Neither prefix nor Host names a namespace: it is `default`, or that of the caller's key."""
    is_direct: bool = False
    """The Host names the predictor, at which transformer and explainer call the model."""
    component: ComponentTarget | None = None
    """The component that serves the request; None: the model itself."""
    pod_path: bytes = field(init=False)
    label: str = field(init=False)
    """The model as a metric label: `namespace/name`."""

    def __post_init__(self) -> None:
        segment = self.model.path_segment
        if self.verb is None:
            path = f"/serving/{segment}/openai/v1/{self.openai_endpoint}"
        else:
            path = kserve_path(segment, self.verb)
        object.__setattr__(self, "pod_path", path.encode())
        object.__setattr__(self, "label", str(self.model))


def target_of_version(target: ModelTarget, model: ModelName) -> ModelTarget:
    """The target for one of the model's versions, with that version's path at pods."""
    return replace(target, model=model, version=model.name.encode())


def target_in_namespace(target: ModelTarget, namespace: str) -> ModelTarget:
    """The target of a plain path, of the same name in another namespace than `default`."""
    model = ModelName(namespace, target.model.name)
    return replace(target, model=model, canaries=(), component=None)


def target_of_variant(
    target: ModelTarget, model: ModelName, *, accuracy: float, utility: float
) -> ModelTarget:
    """The target for one variant of an application; responses have the application's name."""
    lines = (
        f"x-pilotlight-variant: {model.name}\r\n"
        f"x-pilotlight-expected-accuracy: {accuracy:.4f}\r\n"
        f"x-pilotlight-expected-utility: {utility:.4f}\r\n"
    )
    return replace(target, model=model, version=b"", selection_lines=lines.encode())


def openai_target(namespace: str, name: str | None, endpoint: str) -> ModelTarget:
    """The target of an OpenAI request; without a name it is preliminary until the body is read."""
    model = ModelName(namespace, name or "")
    return ModelTarget(model, model.name, openai_endpoint=endpoint, is_named=name is not None)
