"""`spec.transformer` and `spec.explainer`: KServe's components beside a predictor. Pure.

They are containers of the user's. On a cluster the controller makes their pods.
"""

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from common.shown_value import shown
from registry.domain.model import LogMode, ModelName, ModelPolicy, RequestLog

TRANSFORMER: Final = "transformer"
EXPLAINER: Final = "explainer"
COMPONENTS: Final = (TRANSFORMER, EXPLAINER)
MAX_NAME: Final = 63 - len(f"-{TRANSFORMER}")
"""Characters of a model's name: `NAME-transformer` is the name of a Service."""


def component_address(name: ModelName, component: str) -> str:
    """Host and port of a component's Service in its cluster; with `predictor`, of the model's.

    With `svc`, so that a missing Service is not looked up outside the cluster.
    """
    return f"{name.name}-{component}.{name.namespace}.svc:80"


def component_problems(spec: Mapping[str, Any], name: ModelName, policy: ModelPolicy) -> list[str]:
    """Mistakes in the components of an InferenceService, a line for each."""
    problems: list[str] = []
    for component in COMPONENTS:
        found = spec.get(component)
        if found is None:
            continue
        path = f"spec.{component}"
        if not isinstance(found, dict) or not found:
            problems.append(f"{path} must be an object, was {shown(found)}")
            continue
        containers = found.get("containers")
        is_list = isinstance(containers, list) and all(isinstance(e, dict) for e in containers)
        if not (is_list and containers) and (component == TRANSFORMER or containers):
            problems.append(
                f"{path}.containers must be a list with a container, was {shown(containers)}"
            )
        problems += [
            f"{path}.{key} is not supported; write spec.predictor.{key}"
            for key in ("logger", "batcher")
            if found.get(key)
        ]
        if policy.application is not None:
            problems.append(
                f"{path} is not supported with pilotlight.io/application: requests to an"
                " application go to its variants directly"
            )
        if policy.canary_of is not None:
            problems.append(
                f"{path} is not supported with pilotlight.io/canary-of: requests come through the"
                f" {component} of {policy.canary_of}"
            )
        if len(name.name) > MAX_NAME:
            problems.append(
                f"{path} needs a metadata.name of at most {MAX_NAME} characters, for Services such"
                f" as NAME-{TRANSFORMER}; it has {len(name.name)}"
            )
    return problems


def machine_needs(spec: Mapping[str, Any]) -> str:
    """What one machine lacks for the components; empty: nothing."""
    parts = [f"spec.{component}" for component in COMPONENTS if spec.get(component)]
    if not parts:
        return ""
    verb = "are" if len(parts) > 1 else "is"
    return (
        f"{' and '.join(parts)} {verb} run as containers beside the model, which needs a cluster:"
        " on one machine call the model from a service of your own"
    )


def cluster_needs(spec: Mapping[str, Any]) -> str:
    """What a cluster lacks for the components; empty: nothing."""
    if not spec.get(EXPLAINER) or spec[EXPLAINER].get("containers"):
        return ""
    return "spec.explainer has no containers: write KServe's explainer for art as one"


_PATH: Final = "spec.predictor.logger"
_URL: Final = re.compile(r"http://[\x21-\x7e]{1,2000}")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_MAX_HEADERS: Final = 32
_CREDENTIALS: Final = frozenset(("authorization", "cookie", "x-api-key", "x-pilotlight-secret"))


def read_logger(value: object, problems: list[str]) -> RequestLog | None:
    """The log; mistakes are added to `problems`, each a line about one field."""
    if value is None:
        return None
    if not isinstance(value, dict):
        problems.append(f"{_PATH} must be an object, was {shown(value)}")
        return None
    found: list[str] = []
    url, mode = value.get("url"), value.get("mode") or LogMode.ALL.value
    if not _is_url(url):
        found.append(
            f"{_PATH}.url must be http://HOST[:PORT][/PATH], without user and fragment, was"
            f" {shown(url)}"
        )
    if mode not in list(LogMode):
        found.append(f"{_PATH}.mode must be one of {', '.join(LogMode)}, was {shown(mode)}")
    headers = _headers(value, found)
    problems += found
    if found:
        return None
    return RequestLog(str(url), LogMode(mode), headers)


def _is_url(value: object) -> bool:
    if not isinstance(value, str) or not _URL.fullmatch(value):
        return False
    try:
        parts = urlsplit(value)
        port = parts.port
    except ValueError:
        return False
    return bool(parts.hostname) and "@" not in parts.netloc and not parts.fragment and port != 0


def _headers(value: Mapping[str, Any], problems: list[str]) -> tuple[str, ...]:
    given = value.get("metadataHeaders") or []
    path = f"{_PATH}.metadataHeaders"
    if not isinstance(given, list) or len(given) > _MAX_HEADERS:
        problems.append(f"{path} must be a list of up to {_MAX_HEADERS}, was {shown(given)}")
        return ()
    for each in given:
        if not isinstance(each, str) or not _HEADER.fullmatch(each):
            problems.append(f"{path} must hold names of headers, held {shown(each)}")
        elif each.lower() in _CREDENTIALS:
            problems.append(f"{path} may not hold {each}, which has a credential: leave it out")
    return tuple(str(each).lower() for each in given)
