"""Hostile objects and annotations: refused with `InvalidModel`, or read, but soon."""

from collections.abc import Callable
from typing import Any, Final

import yaml
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from controller.admission import review_response, set_defaults, validate
from registry.errors import InvalidModel
from registry.inference_service.annotations import PREFIX, parse_annotations
from registry.inference_service.reader import read_documents
from tests.hostile import platform_objects
from tests.hostile.mutations import ODD_NUMBERS, ODD_TEXTS, damaged, mutated
from tests.hostile.platform_objects import plain

_KEYS: Final = (
    "pool", "policy", "target-ongoing-requests", "queue-depth", "queue-timeout", "deadline",
    "priority", "min-copies", "max-copies", "keep-alive", "pin", "preload", "preload-tier",
    "max-batch-size", "max-batch-wait", "max-load-wait", "task", "loading", "placement", "profile",
    "canary-of", "canary-percent", "unknown", "max-infer-time",
)  # fmt: skip
_VALUES: SearchStrategy[str] = (
    st.sampled_from(ODD_TEXTS)
    | st.sampled_from([str(number) for number in ODD_NUMBERS])
    | st.sampled_from(
        ["2s", "150ms", "1h1h", "1e9h", "9" * 5_000, "٣", "1_0", "true", "auto", "+1", "1.5"]
    )
    | st.from_regex(r"[-+]?[0-9.]{1,8}(ms|s|m|h|us)?", fullmatch=True)
    | st.text(max_size=10)
)
ANNOTATIONS: SearchStrategy[dict[str, str]] = st.dictionaries(
    (st.sampled_from(_KEYS) | _VALUES).map(lambda key: PREFIX + key), _VALUES, max_size=5
)
_DOCUMENT: Final = {
    "apiVersion": "serving.kserve.io/v1beta1",
    "kind": "InferenceService",
    "metadata": {"name": "m", "namespace": "default", "annotations": {f"{PREFIX}pool": "default"}},
    "spec": {
        "predictor": {
            "model": {"modelFormat": {"name": "huggingface"}, "storageUri": "s3://bucket/model"}
        }
    },
}
_FIELDS: Final = (
    "apiVersion", "kind", "metadata", "spec", "name", "namespace", "labels", "annotations",
    "predictor", "model", "storageUri", "storage", "transformer", "canaryTrafficPercent", "runtime",
    "protocolVersion", "deletionTimestamp", "generateName", "status",
    "serving.kserve.io/deploymentMode",
)  # fmt: skip
_YAML: Final = (
    b"a: &a [x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c]",
    b"kind: InferenceService\nkind: X\n", b"!!python/object/apply:os.system ['x']", b"a: *a",
    b"- &x [*x]", b"---\n---\n---", b"{" * 300, b"[" * 3_000, b"? {a: b}\n: c", b"!!binary zz",
    b"2001-99-99", b"!!timestamp 0", b"a: 1_000:99:99", b"%YAML 9.9\n---\na", b"\xff\xfea", b"\0",
    b"<<: 1", b"<<: [*a]", b"!!set {a}", b"a: !!float x", b"!!int 0x", b"y: .inf\n? .nan\n: 1",
    b'"\\ud800"', b"a: " + b"9" * 5_000,
)  # fmt: skip


@st.composite
def inference_services(draw: DrawFn) -> bytes:
    if draw(st.integers(0, 3)) == 0:
        return draw(damaged(st.sampled_from(_YAML)))
    document = plain(draw(mutated(st.just(_DOCUMENT), _FIELDS)))
    text = yaml.safe_dump(document, allow_unicode=True).encode("utf-8", "replace")
    return draw(damaged(st.just(text), most=2))


@st.composite
def reviews(draw: DrawFn) -> Any:
    return plain(draw(mutated(st.just(_DOCUMENT), _FIELDS)))


def read_annotations(given: dict[str, str]) -> str:
    parsed = parse_annotations(given)
    return "refused" if parsed.problems else "read"


def read_yaml_text(content: bytes) -> str:
    try:
        read_documents([("hostile", content.decode("utf-8", "replace"))])
    except InvalidModel:
        return "refused"
    return "read"


def review(document: Any) -> str:
    """As the webhooks do with an object that the API server sends them."""
    if not isinstance(document, dict):
        return "no object"  # the API server sends objects only
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("annotations", {}), dict):
        return "not of the schema"  # nor metadata of another shape than its own
    texts = [*(metadata.get("annotations") or {}).values()]
    texts += [metadata[key] for key in ("name", "namespace") if key in metadata]
    if not all(isinstance(each, str) for each in texts):
        return "not of the schema"
    request = {"request": {"uid": "1", "object": document, "namespace": "default"}}
    try:
        review_response(request, set_defaults)
        allowed = review_response(request, validate)["response"]["allowed"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "refused as no review"  # 400 of the webhook server
    return "read" if allowed else "refused"


CHANNELS: Final[dict[str, tuple[SearchStrategy[Any], Callable[[Any], str]]]] = {
    "annotations": (ANNOTATIONS, read_annotations),
    "yaml": (inference_services(), read_yaml_text),
    "webhooks": (reviews(), review),
    "objects": (platform_objects.objects(), platform_objects.read_object),
    "object-files": (platform_objects.files(), platform_objects.read_file),
}
