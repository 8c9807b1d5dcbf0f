"""The flags of `up` in one table: its own, and those of the processes it starts.

The type, default, help and check of a flag of gateway or autoscaler are those of its own settings.
Those of the pods are imported with torch: here they are said again, and a test compares them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from autoscaler.settings import AutoscalerSettings
from common import sizes
from common.settings_table import options, parse_bool
from gateway.settings import GatewaySettings
from pilotlight.commands import flags
from pilotlight.commands.autoscaler import LOADING_NAMES
from registry.domain.pod import default_slots
from registry.domain.policy_names import PLACEMENT
from registry.inference_service.tenant_quotas import parse_rules


@dataclass(frozen=True, slots=True)
class UpFlag:
    name: str
    panel: str
    """Title in the help; empty: that of all other flags."""
    kind: Any
    default: Any
    help: str
    names: tuple[str, ...] = ()
    """Where it is not the name with dashes alone."""
    variable: str | None = ""
    """Behind `PILOTLIGHT_`; empty: the name in capitals; None: no variable sets it."""
    options: Mapping[str, Any] = dataclass_field(default_factory=dict)
    """Of typer."""
    process: str = ""
    """Whose setting it is: `gateway`, `autoscaler` or `pod`; empty: the platform's own."""
    field: str = ""
    """Name of the setting; empty: the flag's."""
    check: Callable[[str], Any] = str
    """Raises ValueError for a text that the process would refuse."""

    @property
    def parameter(self) -> Parameter:
        more = {"help": self.help, "rich_help_panel": self.panel or None, **self.options}
        if self.variable is not None:
            more["envvar"] = f"PILOTLIGHT_{self.variable or self.name.upper()}"
        kind: Any = Annotated
        return Parameter(
            self.name,
            Parameter.KEYWORD_ONLY,
            default=self.default,
            annotation=kind[self.kind, typer.Option(*self.names, **more)],
        )


_TABLES: Final[Mapping[str, type]] = {"gateway": GatewaySettings, "autoscaler": AutoscalerSettings}


def _of(process: str, name: str, panel: str, help_text: str = "", **more: Any) -> UpFlag:
    """The process's setting as a flag; `more`: what differs from the process's table."""
    setting = next(each for each in options(_TABLES[process]) if each.name == name)
    check, text = setting.metadata["parse"], help_text or setting.metadata["help"]
    low, high = getattr(check, "bounds", (None, None))
    typed: dict[str, Any] = {} if low is None else {"min": low, "max": high}
    typed |= {key: more.pop(key) for key in ("show_default", "min") if key in more}
    return UpFlag(
        name,
        panel,
        more.pop("kind", type(setting.default)),
        more.pop("default", setting.default),
        f"{text[0].upper()}{text[1:]}".rstrip(".") + ".",
        options=typed,
        process=process,
        check=check,
        **more,
    )


def _pods(
    name: str, panel: str, default: Any, help_text: str, *, shown: str = "", **more: Any
) -> UpFlag:
    """A setting of each pod; `shown`: in place of the default."""
    if shown:
        more["options"] = {"show_default": shown}
    kind = more.pop("kind", type(default))
    return UpFlag(name, panel, kind, default, help_text, process="pod", **more)


def _rules(name: str) -> Callable[[str], str]:
    """Checks a text of `parse_rules`."""

    def check(text: str) -> str:
        parse_rules(**{name: text})
        return text

    return check


UP_FLAGS: Final = (
    _of("gateway", "host", "Platform", "Address the gateway listens on."),
    _of("gateway", "port", "Platform", "Port the gateway listens on; 0 takes a free one."),
    _of(
        "gateway",
        "grpc_port",
        "Platform",
        "Port of the gateway's V2 over gRPC; 0: none.",
        variable="GATEWAY_GRPC_PORT",
    ),
    _of("gateway", "ingress_domain", "Platform", show_default="every domain may be theirs"),
    UpFlag(
        "redis_url",
        "Platform",
        str | None,
        None,
        "URL of a Redis to use as registry. Default: start an embedded one.",
    ),
    UpFlag(
        "detach",
        "Platform",
        bool,
        False,
        "Return when the platform is ready.",
        names=("--detach", "-d"),
        variable=None,
    ),
    UpFlag(
        "ephemeral",
        "Platform",
        bool,
        False,
        "Begin without the models declared before, and forget this run's at its end. "
        "Default: models in the embedded Redis are declared again at the next start.",
        names=("--ephemeral",),
        variable=None,
    ),
    UpFlag("pods", "Pods", int, 8, "Number of pods to start.", options={"min": 1, "max": 256}),
    _pods(
        "slots",
        "Pods",
        0,
        "Concurrent requests per pod. 0: by device and profiles, "
        f"{default_slots()} on a CPU without profiles.",
        options={"min": 0},
        check=int,
    ),
    _pods("threads", "Pods", 1, "CPU threads of one inference.", options={"min": 1}, check=int),
    _pods(
        "pod_memory",
        "Pods",
        "4Gi",
        "Memory for models per pod, such as 4Gi, 500MB or 4294967296.",
        field="memory_bytes",
        check=sizes.parse_size_from(1),
    ),
    _pods(
        "pod_disk",
        "Pods",
        None,
        "Disk for model files per pod, such as 20Gi.",
        shown="four fifths of the free space",
        kind=str | None,
        field="disk_bytes",
        check=sizes.parse_size_from(1),
    ),
    _pods(
        "pod_link_rate",
        "Pods",
        "unlimited",
        "Limit of each pod's download rate from object storage, such as 100MB/s. For experiments.",
        field="link_rate",
        check=lambda text: 0 if (rate := sizes.parse_rate(text)) == float("inf") else int(rate),
    ),
    _pods(
        "allow_pickle",
        "Pods",
        False,
        "Serve scikit-learn's model.joblib and model.pkl. Their code runs in a process per "
        "namespace without network, your files or other programs.",
        names=("--allow-pickle",),
        check=parse_bool,
    ),
    _pods(
        "engine_command",
        "Pods",
        "",
        "Command of a server that speaks V2 and runs all models, such as MLServer's; each pod "
        "starts one. {repository}, {port}, {grpc_port} and {metrics_port} are replaced.",
        shown="none",
    ),
    _pods(
        "engine_url",
        "Pods",
        "",
        "URL of such a server that runs already, with --pods 1 and --engine-repository.",
        shown="none",
    ),
    _pods(
        "engine_repository",
        "Pods",
        "",
        "Folder from which that server reads its models.",
        shown="by pod",
    ),
    _pods(
        "engine_metrics",
        "Pods",
        "",
        "URL of the server's metrics, for the memory of models.",
        shown="memory of its process",
    ),
    UpFlag(
        "s3",
        "Storage",
        bool,
        True,
        "Start an object store with the sample models. With --no-s3, AWS_* name yours.",
        names=("--s3/--no-s3",),
    ),
    UpFlag(
        "objects",
        "Storage",
        Path | None,
        None,
        "Folder the object store serves, with one folder per bucket. With this flag no "
        "sample models are made.",
        options={"show_default": "objects in --home"},
    ),
    UpFlag(
        "autoscaler",
        "Autoscaler",
        bool,
        True,
        "Run the autoscaler: preload models ahead of requests and demote idle ones.",
        names=("--autoscaler/--no-autoscaler",),
    ),
    _of("autoscaler", "loading", "Autoscaler", f"Loading policy, one of {LOADING_NAMES}."),
    _of(
        "autoscaler",
        "min_pods",
        "Autoscaler",
        "Scale between this number and --pods; 0 scales to zero. Default: keep --pods running.",
        kind=int | None,
        min=0,
    ),
    _of(
        "autoscaler",
        "pod_idle",
        "Autoscaler",
        "Seconds from the last request to the stop of the last pod.",
        min=0.1,
    ),
    _of(
        "autoscaler",
        "pod_stable",
        "Autoscaler",
        "Seconds for which fewer pods must suffice before a pod stops.",
        min=0.1,
    ),
    _of(
        "gateway",
        "api_keys",
        "Tenants",
        "Folder with a file of API keys for each namespace, which requests must then send; "
        "`pilotlight key new` writes them.",
        kind=Path | None,
        default=None,
        show_default="no key is needed",
    ),
    _of(
        "gateway",
        "token_issuers",
        "Tenants",
        "Folder with a file of trusted issuers of tokens (JWT) for each namespace.",
        kind=Path | None,
        default=None,
        show_default="tokens are not read",
    ),
    _pods(
        "namespaces",
        "Tenants",
        "",
        "Namespaces whose models pods serve, separated by commas.",
        shown="all",
        check=_rules("namespaces"),
    ),
    _pods(
        "storage_prefixes",
        "Tenants",
        "",
        "URIs that each namespace's models may read with the pods' credentials, such as "
        "'team=s3://team/; *=file:///models'.",
        shown="everything",
        check=_rules("prefixes"),
    ),
    _pods(
        "quotas",
        "Tenants",
        "",
        "Bytes per namespace, of memory on all pods and of cache on each, such as"
        " '*=memory:1Gi cache:500MB'.",
        shown="none",
        check=_rules("quotas"),
    ),
    _of(
        "autoscaler",
        "placement",
        "GPU",
        "Placement planner: it places models with a deadline and a profile on accelerators, each "
        f"copy in a pod of its own beside --pods: {PLACEMENT}.",
    ),
    UpFlag(
        "mps",
        "GPU",
        bool,
        False,
        "Start NVIDIA's MPS daemon: pods on one GPU compute at once, within their shares.",
    ),
    _pods(
        "allow_simulated_work",
        "Experiments",
        False,
        "Honour the request header x-pilotlight-simulate. For experiments.",
        names=("--allow-simulated-work",),
        check=parse_bool,
    ),
)
SHARED_FLAGS: Final = (
    Parameter("filename", Parameter.KEYWORD_ONLY, default=[], annotation=flags.Files),
    Parameter("pool", Parameter.KEYWORD_ONLY, default="default", annotation=flags.Pool),
    Parameter("namespace", Parameter.KEYWORD_ONLY, default=None, annotation=flags.Namespace),
    Parameter("home", Parameter.KEYWORD_ONLY, default=None, annotation=flags.Home),
    Parameter("json_", Parameter.KEYWORD_ONLY, default=False, annotation=flags.Json),
)


def settings_of(process: str, given: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """The process's settings by field name, where a flag was given; adds problems."""
    found = {}
    for flag in UP_FLAGS:
        value = given[flag.name]
        if flag.process != process or value in (None, ""):
            continue
        if isinstance(value, Path):
            value = value.expanduser().absolute()
        try:
            found[flag.field or flag.name] = flag.check(str(value))
        except ValueError as error:
            problems.append(f"--{flag.name.replace('_', '-')} {error}")
    return found
