"""The flags of `up` in one table: its own, and settings of the processes that it starts.

The type, default, help and check of such a flag are those of the process's own settings, unless the
table says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from autoscaler.settings import AutoscalerSettings
from common.settings_table import options
from gateway.settings import GatewaySettings
from pilotlight.commands import flags
from registry.policy_names import LOADING, PLACEMENT
from runtime.settings import RuntimeSettings


@dataclass(frozen=True, slots=True)
class UpFlag:
    name: str
    panel: str
    """Title in the help."""
    help: str = ""
    """Empty: that of the process's setting."""
    kind: Any = str
    default: Any = ""
    names: tuple[str, ...] = ()
    """Where it is not the name with dashes alone."""
    variable: str | None = ""
    """Behind `PILOTLIGHT_`; empty: the name in capitals; None: no variable sets it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of typer."""
    process: str = ""
    """Whose setting it is: `gateway`, `autoscaler` or `pod`; empty: the platform's own."""
    setting: str = ""
    """Name in the process's table; empty: the flag's."""

    @property
    def parameter(self) -> Parameter:
        more = {"help": self.help, "rich_help_panel": self.panel, **self.options}
        if self.variable is not None:
            more["envvar"] = f"PILOTLIGHT_{self.variable or self.name.upper()}"
        kind: Any = Annotated
        option = kind[self.kind, typer.Option(*self.names, **more)]
        return flags.argument(self.name, option, self.default)

    @property
    def read_as(self) -> str:
        return self.setting or self.name


_TABLES: Final[Mapping[str, type]] = {
    "gateway": GatewaySettings,
    "autoscaler": AutoscalerSettings,
    "pod": RuntimeSettings,
}
_SETTINGS: Final = {
    process: {each.name: each for each in options(table)} for process, table in _TABLES.items()
}


def _of(process: str, panel: str, name: str, help_text: str = "", **more: Any) -> UpFlag:
    """The process's setting as a flag; `more`: what differs from the process's table."""
    setting = _SETTINGS[process][more.get("setting", name)]
    text = help_text or setting.metadata["help"].replace("`", "")
    low, high = getattr(setting.metadata["parse"], "bounds", (None, None))
    typed: dict[str, Any] = {} if low is None else {"min": low, "max": high}
    typed |= {key: more.pop(key) for key in ("show_default", "min") if key in more}
    kind = type(setting.default)
    flag = UpFlag(
        name,
        panel,
        f"{text[0].upper()}{text[1:]}".rstrip(".") + ".",
        kind,
        setting.default,
        (f"--{name.replace('_', '-')}",) if kind is bool else (),
        options=typed,
        process=process,
    )
    return replace(flag, **more)


def _grant(name: str, text: str, default: str) -> UpFlag:
    return UpFlag(name, "Tenants", text, options={"show_default": default})


_platform = partial(_of, "gateway", "Platform")
_pod = partial(_of, "pod", "Pods")
_scaling = partial(_of, "autoscaler", "Autoscaler")
_tenants = partial(_of, "gateway", "Tenants")
UP_FLAGS: Final = (
    _platform("host", "Address the gateway listens on."),
    _platform("port", "Port the gateway listens on; 0 takes a free one."),
    _platform(
        "grpc_port", "Port of the gateway's V2 over gRPC; 0: none.", variable="GATEWAY_GRPC_PORT"
    ),
    _platform("ingress_domain", show_default="every domain may be theirs"),
    UpFlag(
        "redis_url",
        "Platform",
        "URL of a Redis to use as registry. Default: start an embedded one.",
        str | None,
        None,
    ),
    UpFlag(
        "detach",
        "Platform",
        "Return when the platform is ready.",
        bool,
        False,
        ("--detach", "-d"),
        variable=None,
    ),
    UpFlag(
        "ephemeral",
        "Platform",
        "Begin without the models declared before, and forget this run's at its end. "
        "Default: models in the embedded Redis are declared again at the next start.",
        bool,
        False,
        ("--ephemeral",),
        variable=None,
    ),
    UpFlag("pods", "Pods", "Number of pods to start.", int, 8, options={"min": 1, "max": 256}),
    _pod(
        "slots",
        "Concurrent requests per pod; 0: by device and profiles, 8 on a CPU without profiles.",
    ),
    _pod("threads", "CPU threads of one inference."),
    _pod(
        "pod_memory",
        "Memory for models per pod, such as 4Gi, 500MB or 4294967296.",
        setting="memory_bytes",
        kind=str,
        default="4Gi",
    ),
    _pod(
        "pod_disk",
        "Disk for model files per pod, such as 20Gi.",
        setting="disk_bytes",
        kind=str | None,
        default=None,
        show_default="four fifths of the free space",
    ),
    _pod("allow_pickle"),
    _pod(
        "engine_command",
        "Command of a server that speaks V2 and runs all models, such as MLServer's; each pod "
        "starts one. {repository}, {port}, {grpc_port} and {metrics_port} are replaced.",
        show_default="none",
    ),
    _pod(
        "engine_url",
        "URL of such a server that runs already, with --pods 1 and --engine-repository.",
        show_default="none",
    ),
    _pod(
        "engine_repository",
        "Folder from which that server reads its models.",
        show_default="by pod",
    ),
    _pod(
        "engine_metrics",
        "URL of the server's metrics, for the memory of models.",
        show_default="memory of its process",
    ),
    _pod(
        "engine_python",
        "Python of an environment with vLLM, which then runs models that generate text.",
        show_default="none",
    ),
    _pod(
        "llama_server",
        "llama.cpp's server (llama-server), which then runs models in GGUF files.",
        show_default="none",
    ),
    _pod("engine", "What runs models without pilotlight.io/engine: auto, vllm, llama.cpp or own."),
    UpFlag(
        "s3",
        "Storage",
        "Start an object store with the sample models. With --no-s3, AWS_* name yours.",
        bool,
        True,
        ("--s3/--no-s3",),
    ),
    UpFlag(
        "objects",
        "Storage",
        "Folder the object store serves, with one folder per bucket. With this flag no "
        "sample models are made.",
        Path | None,
        None,
        options={"show_default": "objects in --home"},
    ),
    UpFlag(
        "autoscaler",
        "Autoscaler",
        "Run the autoscaler: preload models ahead of requests and demote idle ones.",
        bool,
        True,
        ("--autoscaler/--no-autoscaler",),
    ),
    _scaling("loading", f"Loading policy, one of {LOADING}."),
    _scaling(
        "min_pods",
        "Scale between this number and --pods; 0 scales to zero. Default: keep --pods running.",
        kind=int | None,
        min=0,
    ),
    _scaling("pod_idle", "Seconds from the last request to the stop of the last pod.", min=0.1),
    _scaling(
        "pod_stable", "Seconds for which fewer pods must suffice before a pod stops.", min=0.1
    ),
    _tenants(
        "api_keys",
        "Folder with a file of API keys for each namespace, which requests must then send; "
        "`pilotlight key new` writes them.",
        kind=Path | None,
        default=None,
        show_default="no key is needed",
    ),
    _tenants(
        "token_issuers",
        "Folder with a file of trusted issuers of tokens (JWT) for each namespace.",
        kind=Path | None,
        default=None,
        show_default="tokens are not read",
    ),
    _grant("namespaces", "Namespaces whose models are served, separated by commas.", "all"),
    _grant(
        "storage_prefixes",
        "Beginnings of the URIs that each namespace's models may read with the platform's "
        "credentials: NAMESPACE=PREFIX PREFIX; *=PREFIX.",
        "everything",
    ),
    _grant(
        "quotas",
        "Bytes of models per namespace, on devices and in the disk cache: "
        "NAMESPACE=memory:2Gi cache:20Gi; *=memory:1Gi.",
        "none",
    ),
    _of(
        "autoscaler",
        "GPU",
        "placement",
        "Placement planner: it places models with a deadline and a profile on accelerators, each "
        f"copy in a pod of its own beside --pods: {PLACEMENT}.",
    ),
    UpFlag(
        "mps",
        "GPU",
        "Start NVIDIA's MPS daemon: pods on one GPU compute at once, within their shares.",
        bool,
        False,
        ("--mps/--no-mps",),
    ),
)
SHARED_FLAGS: Final = (
    flags.argument("filename", flags.Files, []),
    flags.argument("pool", flags.Pool, "default"),
    flags.argument("namespace", flags.Namespace, None),
    flags.argument("home", flags.Home, None),
    flags.argument("json_", flags.Json, False),
)


def settings_of(process: str, given: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The process's settings by name, where a flag was given; adds problems."""
    found = {}
    for flag in UP_FLAGS:
        value = given[flag.name]
        if flag.process != process or value is None or value == flag.default == "":
            continue
        if isinstance(value, Path):
            value = value.expanduser().absolute()
        try:
            setting = _SETTINGS[process][flag.read_as]
            found[flag.read_as] = setting.metadata["parse"](str(value))
        except ValueError as error:
            problems.append(f"--{flag.name.replace('_', '-')} {error}")
    return found
