"""The settings of one pod: one table drives the flag, the environment variable and the default."""

from __future__ import annotations

import argparse
import dataclasses
import socket
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GIB = 1024**3
MIB = 1024**2


def _option(default: object, parse: Callable[[str], object], help_text: str) -> Any:
    """A dataclass field that carries its own parser and description."""
    return field(default=default, metadata={"parse": parse, "help": help_text})


def _truth(text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off", ""}:
        return False
    raise ValueError(f"must be true or false, was {text!r}")


def _at_least(minimum: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise ValueError(f"must be at least {minimum}, was {text!r}")
        return value

    return parse


def _positive_seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ValueError(f"must be a positive number of seconds, was {text!r}")
    return value


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Everything a pod is told when it starts. Times in seconds, sizes in bytes."""

    name: str = _option("", str, "name of the pod, unique in its pool")
    redis_url: str = _option("redis://127.0.0.1:6379/0", str, "the registry")
    host: str = _option("127.0.0.1", str, "address to listen on; 0.0.0.0 in a container")
    port: int = _option(0, _at_least(0), "port to listen on; 0 takes a free one")
    advertise: str = _option("", str, "host that others reach this pod at, where it is not `host`")
    pool: str = _option("default", str, "pool of pods that serve the same models")
    node: str = _option("", str, "node the pod runs on; empty: the host name")
    slots: int = _option(1, _at_least(1), "requests served at once by this pod as entry pod")
    memory_bytes: int = _option(2 * GIB, _at_least(1), "budget for models on the device")
    cache_dir: str = _option("", str, "folder for model files; empty: one in the temporary folder")
    link_rate: int = _option(
        0, _at_least(0), "bytes per second that all downloads share; 0: no limit"
    )
    threads: int = _option(1, _at_least(1), "threads of one inference")
    allow_simulated_work: bool = _option(
        False, _truth, "honour x-pilotlight-simulate; for experiments only"
    )
    max_body_bytes: int = _option(64 * MIB, _at_least(1), "longest request body")
    lease_ttl: float = _option(3.0, _positive_seconds, "life of the lease; 3 heartbeats or more")
    heartbeat: float = _option(1.0, _positive_seconds, "time between heartbeats")
    drain_timeout: float = _option(
        30.0, _positive_seconds, "how long requests in flight may take after SIGTERM"
    )
    retire_grace: float = _option(
        5.0, _positive_seconds, "how long a model is absent before its files are deleted"
    )
    device_queue: int = _option(1024, _at_least(1), "inferences that may wait for the device")
    log_file: str = _option("", str, "file for log lines; empty: standard error")
    log_level: str = _option("INFO", str, "least level that is logged")

    @property
    def cache_path(self) -> Path:
        """The folder for model files."""
        default = Path(tempfile.gettempdir()) / "pilotlight-cache" / self.name
        return Path(self.cache_dir) if self.cache_dir else default

    @property
    def node_name(self) -> str:
        """The node's name."""
        return self.node or socket.gethostname()


def environment_name(field_name: str) -> str:
    """The environment variable of a setting; `name` alone is `PILOTLIGHT_POD_NAME`."""
    return "PILOTLIGHT_POD_NAME" if field_name == "name" else f"PILOTLIGHT_{field_name.upper()}"


def read_settings(arguments: Sequence[str], environment: Mapping[str, str]) -> PodSettings:
    """Settings from flags over environment over defaults; exits with status 2 on mistakes."""
    parser = argparse.ArgumentParser(prog="python -m runtime", description=__doc__)
    fields = dataclasses.fields(PodSettings)
    for each in fields:
        flag = "--" + each.name.replace("_", "-")
        text = f"{each.metadata['help']} (environment {environment_name(each.name)})"
        if isinstance(each.default, bool):
            parser.add_argument(flag, dest=each.name, action="store_const", const="true", help=text)
        else:
            parser.add_argument(flag, dest=each.name, help=text)
    given = vars(parser.parse_args(arguments))
    texts: dict[str, str] = {}
    for each in fields:
        text_value = given[each.name]
        if text_value is None:
            text_value = environment.get(environment_name(each.name))
        if text_value is not None:
            texts[each.name] = text_value
    try:
        return settings_from_fields(texts)
    except ValueError as error:
        parser.error(str(error))


def settings_from_fields(values: Mapping[str, object]) -> PodSettings:
    """Settings from keyword fields; raises ValueError naming all mistakes together."""
    fields = {each.name: each for each in dataclasses.fields(PodSettings)}
    problems = [f"unknown setting {name!r}" for name in values if name not in fields]
    parsed: dict[str, object] = {}
    for name in values.keys() & fields.keys():
        try:
            parsed[name] = fields[name].metadata["parse"](str(values[name]))
        except ValueError as error:
            problems.append(f"--{name.replace('_', '-')}: {error}")
    if not parsed.get("name"):
        problems.append("--name is required, or PILOTLIGHT_POD_NAME")
    if problems:
        raise ValueError("; ".join(sorted(problems)))
    return PodSettings(**parsed)  # type: ignore[arg-type]  # parsed by the table above
