"""The path that names a model, by protocol and by the target's layout."""

from __future__ import annotations

from urllib.parse import quote

from load.generator.settings import Layout, RequestProtocol


def inference_path(
    protocol: RequestProtocol, layout: Layout, *, tenant: str, model: str, is_generation: bool
) -> str:
    """The path of one request; for gRPC the name of the model."""
    name = model_segment(layout, tenant=tenant, model=model)
    match protocol:
        case RequestProtocol.V1:
            path = f"/v1/models/{name}:predict"
        case RequestProtocol.V2:
            path = f"/v2/models/{name}/infer"
        case RequestProtocol.OPENAI:
            path = f"/openai/v1/{'completions' if is_generation else 'embeddings'}"
        case RequestProtocol.GRPC:
            return f"{tenant}~{model}" if layout is Layout.POD else model
    return _prefix(layout, tenant, model, is_openai=protocol is RequestProtocol.OPENAI) + path


def metadata_path(layout: Layout, *, tenant: str, model: str) -> str:
    """Where a model's V2 metadata are."""
    name = model_segment(layout, tenant=tenant, model=model)
    return f"{_prefix(layout, tenant, model, is_openai=False)}/v2/models/{name}"


def model_segment(layout: Layout, *, tenant: str, model: str) -> str:
    """The model's name inside a path."""
    return quote(f"{tenant}~{model}", safe="~") if layout is Layout.POD else quote(model, safe="")


def _prefix(layout: Layout, tenant: str, model: str, *, is_openai: bool) -> str:
    is_serving = layout is Layout.GATEWAY or (layout is Layout.POD and is_openai)
    if not is_serving:
        return ""
    if layout is Layout.POD:
        return f"/serving/{model_segment(layout, tenant=tenant, model=model)}"
    return f"/serving/{quote(tenant, safe='')}/{quote(model, safe='')}"
