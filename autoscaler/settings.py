"""Settings of one autoscaler: flags and environment variables."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from autoscaler.loading_policies import policy_of
from autoscaler.placement import planner_of
from common.pod_secret import parse_secret_file
from common.settings_table import option, parse_bool, parse_int, parse_positive, parse_seconds
from common.tls import TLS_DIR_HELP, parse_tls_dir
from registry.domain.model import PlacementName
from registry.errors import PluginError
from registry.policy_names import LOADING, PLACEMENT, PolicyNames
from registry.redis.server_address import parse_redis_url

N = TypeVar("N")


def _plug_in(names: PolicyNames, load: Callable[[str], object]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in names:
            raise ValueError(f"must be one of {names}, was {text!r}")
        try:
            if text != PlacementName.OFF:
                load(text)
        except PluginError as error:
            raise ValueError(f"cannot be {text!r}: {error}") from error
        return text

    return parse


def _or_none(parse: Callable[[str], N]) -> Callable[[str], N | None]:
    def read(text: str) -> N | None:
        return parse(text) if text else None

    return read


@dataclass(frozen=True, slots=True)
class AutoscalerSettings:
    """Settings of one autoscaler. Times in seconds."""

    redis_url: str = option("redis://127.0.0.1:6379", parse_redis_url, "the registry")
    pool: str = option("default", str, "pool of pods to plan for")
    pod_secret_file: str = option(
        "",
        parse_secret_file,
        "file with the secrets, one per line, that requests to pods carry; read again when it"
        " changes; empty: none",
    )
    tls_dir: str = option("", parse_tls_dir, TLS_DIR_HELP)
    loading: str = option(
        "predictive", _plug_in(LOADING, policy_of), "loading policy: which models are loaded where"
    )
    loading_value: float | None = option(
        None,
        _or_none(parse_positive),
        "the policy's parameter: price of a device's memory in "
        "seconds saved per GB and hour (predictive), minutes (keep-alive), GB per device "
        "(greedy-dual), range in minutes (hybrid-histogram); default: the policy's own",
    )
    placement: str = option(
        "off",
        _plug_in(PLACEMENT, planner_of),
        "planner that says which models share which accelerators, with which batch"
        " and share, each on a pod of its own; off: none",
    )
    cpu_accelerators: str = option(
        "",
        str,
        "names of the groups of cores that models are placed on, separated by commas, as"
        " `pilotlight up` knows them; GPUs are those that pods report",
    )
    min_pods: int | None = option(
        None,
        _or_none(parse_int(0, 10_000)),
        "minimum number of pods; scaling needs this or --max-pods",
    )
    max_pods: int | None = option(None, _or_none(parse_int(1, 10_000)), "maximum number of pods")
    kubernetes: bool = option(
        False,
        parse_bool,
        "scale the pool's Deployment, in this pod's cluster or the kubeconfig's, within the bounds "
        "of its InferenceService",
    )
    namespace: str = option("pilotlight", str, "namespace of the pool's InferenceService")
    pod_idle: float = option(
        120.0, parse_seconds, "how long the last pod is kept after the last request"
    )
    pod_stable: float = option(
        60.0, parse_seconds, "how long fewer pods must suffice before one is removed"
    )
    pace: float = option(
        1.0,
        parse_positive,
        "seconds on the clock of policies and forecasts per second of the "
        "registry's, for replays of compressed traces",
    )
    metrics_port: int = option(0, parse_int(0, 65535), "port of the metrics; 0: off")
    scaler_port: int = option(
        0,
        parse_int(0, 65535),
        "port of KEDA's external scaler, over gRPC, with TLS if there is --tls-dir; 0: off",
    )
    log_level: str = option("INFO", str, "minimum level of log messages")

    @property
    def accelerator_names(self) -> tuple[str, ...]:
        return tuple(name for name in self.cpu_accelerators.split(",") if name)
