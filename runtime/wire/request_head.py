"""What a request says of itself in its headers, typed and checked."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from registry.domain.model import ModelName
from runtime.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

PEER = re.compile(r"^[A-Za-z0-9.\-\[\]:]+:\d{1,5}$")
PRINTABLE = re.compile(r"^[\x21-\x7e]{1,256}$")
TOKEN = re.compile(r"^[0-9]{1,18}$")
SIMULATED_STAGES = frozenset({"preprocess", "postprocess", "network"})
MOST_SIMULATED_S = 600.0


@dataclass(frozen=True, slots=True)
class SimulatedWork:
    """Seconds of sleep per stage, for experiments."""

    preprocess_s: float = 0.0
    postprocess_s: float = 0.0
    network_s: float = 0.0


NO_SIMULATION = SimulatedWork()


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request without its body."""

    name: ModelName
    answer_name: str
    """What the answer calls the model: the name its caller used."""
    id: str
    generation: str | None
    reservation: str | None
    load_token: int | None
    predict_address: str | None
    """Another pod that has or gets the network; None: this one."""
    is_infer_stage: bool
    deadline_s: float | None
    """`time.monotonic` at which the answer is of no more use."""
    simulation: SimulatedWork
    v2_header_length: str | None


def read_head(
    segment: str, headers: Mapping[str, str], *, allow_simulated_work: bool
) -> RequestHead:
    """The head of a request; raises InvalidRequest naming the header that is wrong."""
    name = ModelName.from_path_segment(segment)
    stage = headers.get("x-pilotlight-stage")
    if stage not in {None, "infer"}:
        raise InvalidRequest(f"header x-pilotlight-stage must be 'infer', was {stage!r}")
    return RequestHead(
        name=name,
        answer_name=headers.get("x-pilotlight-model-name") or name.name,
        id=_printable(headers, "x-request-id") or uuid.uuid4().hex,
        generation=headers.get("x-pilotlight-generation") or None,
        reservation=_printable(headers, "x-pilotlight-reservation"),
        load_token=_load_token(headers.get("x-pilotlight-load-token")),
        predict_address=_peer(headers.get("x-pilotlight-predict")),
        is_infer_stage=stage == "infer",
        deadline_s=_deadline(headers.get("x-pilotlight-deadline-ms")),
        simulation=_simulation(
            headers.get("x-pilotlight-simulate"), is_allowed=allow_simulated_work
        ),
        v2_header_length=headers.get("inference-header-content-length"),
    )


def _printable(headers: Mapping[str, str], header: str) -> str | None:
    text = headers.get(header)
    if text and not PRINTABLE.match(text):
        raise InvalidRequest(f"header {header} must be 1 to 256 printable characters")
    return text or None


def _load_token(text: str | None) -> int | None:
    if not text:
        return None
    if not TOKEN.match(text):
        raise InvalidRequest(f"header x-pilotlight-load-token must be a number, was {text[:40]!r}")
    return int(text) or None


def _peer(text: str | None) -> str | None:
    if not text:
        return None
    if not PEER.match(text):
        raise InvalidRequest(f"header x-pilotlight-predict must be host:port, was {text!r}")
    return text


def _deadline(text: str | None) -> float | None:
    if not text:
        return None
    try:
        remaining_ms = float(text)
    except ValueError:
        remaining_ms = float("nan")
    if not -1e12 < remaining_ms < 1e12:
        raise InvalidRequest(
            f"header x-pilotlight-deadline-ms must be milliseconds that are left, was {text!r}"
        )
    return time.monotonic() + remaining_ms / 1000


def _simulation(text: str | None, *, is_allowed: bool) -> SimulatedWork:
    if not text:
        return NO_SIMULATION
    if not is_allowed:
        raise InvalidRequest(
            "header x-pilotlight-simulate is honoured only by pods that run with"
            " --allow-simulated-work"
        )
    seconds: dict[str, float] = {}
    for part in text.split(","):
        stage, _, value = part.strip().partition("=")
        if stage not in SIMULATED_STAGES or not re.fullmatch(r"\d+(\.\d+)?", value):
            raise InvalidRequest(
                "header x-pilotlight-simulate must be stage=seconds for stages"
                f" {sorted(SIMULATED_STAGES)}, was {part.strip()!r}"
            )
        seconds[f"{stage}_s"] = min(float(value), MOST_SIMULATED_S)
    return SimulatedWork(**seconds)
