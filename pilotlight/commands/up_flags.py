"""The flags of `up`, with their environment variables and help."""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from pilotlight.commands.autoscaler import LOADING_NAMES
from pilotlight.commands.flags import setting
from registry.domain.loading_choice import PLACEMENT
from registry.domain.pod import default_slots

_platform = partial(setting, rich_help_panel="Platform")
_pods = partial(setting, rich_help_panel="Pods")
_storage = partial(setting, rich_help_panel="Storage")
_autoscaler = partial(setting, rich_help_panel="Autoscaler")
_tenants = partial(setting, rich_help_panel="Tenants")
_gpu = partial(setting, rich_help_panel="GPU")
_experiments = partial(setting, rich_help_panel="Experiments")

Pods = Annotated[int, _pods("PODS", "Number of pods to start.", min=1, max=256)]
RedisUrl = Annotated[
    str | None,
    _platform("REDIS_URL", "URL of a Redis to use as registry. Default: start an embedded one."),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach", "-d", help="Return when the platform is ready.", rich_help_panel="Platform"
    ),
]
Host = Annotated[str, _platform("HOST", "Address the gateway listens on.")]
Port = Annotated[
    int, _platform("PORT", "Port the gateway listens on; 0 takes a free one.", min=0, max=65535)
]
GrpcPort = Annotated[
    int,
    _platform(
        "GATEWAY_GRPC_PORT", "Port of the gateway's V2 over gRPC; 0: none.", min=0, max=65535
    ),
]
Slots = Annotated[
    int,
    _pods(
        "SLOTS",
        "Concurrent requests per pod. 0: by device and profiles, "
        f"{default_slots()} on a CPU without profiles.",
        min=0,
    ),
]
Threads = Annotated[int, _pods("THREADS", "CPU threads of one inference.", min=1)]
PodMemory = Annotated[
    str, _pods("POD_MEMORY", "Memory for models per pod, such as 4Gi, 500MB or 4294967296.")
]
PodDisk = Annotated[
    str | None,
    _pods(
        "POD_DISK",
        "Disk for model files per pod, such as 20Gi.",
        show_default="four fifths of the free space",
    ),
]
PodLinkRate = Annotated[
    str,
    _pods(
        "POD_LINK_RATE",
        "Limit of each pod's download rate from object storage, such as 100MB/s. For experiments.",
    ),
]
IngressDomain = Annotated[
    str,
    _platform(
        "INGRESS_DOMAIN",
        "Domain of models' Hosts, such as example.com: a Host below it that names no declared model"
        " is 404, and other domains are the gateway's own.",
        show_default="every domain may be the models'",
    ),
]
ApiKeys = Annotated[
    Path | None,
    _tenants(
        "API_KEYS",
        "Folder with a file of API keys for each namespace, which requests must then send; "
        "`pilotlight key new` writes them.",
        show_default="no key is needed",
    ),
]
TokenIssuers = Annotated[
    Path | None,
    _tenants(
        "TOKEN_ISSUERS",
        "Folder with a file of trusted issuers of tokens (JWT) for each namespace.",
        show_default="tokens are not read",
    ),
]
Namespaces = Annotated[
    str,
    _tenants(
        "NAMESPACES", "Namespaces whose models pods serve, separated by commas.", show_default="all"
    ),
]
StoragePrefixes = Annotated[
    str,
    _tenants(
        "STORAGE_PREFIXES",
        "URIs that each namespace's models may read with the pods' credentials, such as "
        "'team=s3://team/; *=file:///models'.",
        show_default="everything",
    ),
]
Quotas = Annotated[
    str,
    _tenants(
        "QUOTAS",
        "Bytes per namespace, of memory on all pods and of cache on each, such as"
        " '*=memory:1Gi cache:500MB'.",
        show_default="none",
    ),
]
AllowPickle = Annotated[
    bool,
    _pods(
        "ALLOW_PICKLE",
        "Serve scikit-learn's model.joblib and model.pkl. Their code runs in a process per "
        "namespace without network, your files or other programs.",
        "--allow-pickle",
    ),
]
EngineCommand = Annotated[
    str,
    _pods(
        "ENGINE_COMMAND",
        "Command of a server that speaks V2 and runs all models, such as MLServer's; each pod "
        "starts one. {repository}, {port}, {grpc_port} and {metrics_port} are replaced.",
        show_default="none",
    ),
]
EngineUrl = Annotated[
    str,
    _pods(
        "ENGINE_URL",
        "URL of such a server that runs already, with --pods 1 and --engine-repository.",
        show_default="none",
    ),
]
EngineRepository = Annotated[
    str,
    _pods(
        "ENGINE_REPOSITORY",
        "Folder from which that server reads its models.",
        show_default="by pod",
    ),
]
EngineMetrics = Annotated[
    str,
    _pods(
        "ENGINE_METRICS",
        "URL of the server's metrics, for the memory of models.",
        show_default="memory of its process",
    ),
]
S3 = Annotated[
    bool,
    _storage(
        "S3",
        "Start an object store with the sample models. With --no-s3, AWS_* name yours.",
        "--s3/--no-s3",
    ),
]
Objects = Annotated[
    Path | None,
    _storage(
        "OBJECTS",
        "Folder the object store serves, with one folder per bucket. With this flag no "
        "sample models are made.",
        show_default="objects in --home",
    ),
]
AllowSimulatedWork = Annotated[
    bool,
    _experiments(
        "ALLOW_SIMULATED_WORK",
        "Honour the request header x-pilotlight-simulate. For experiments.",
        "--allow-simulated-work",
    ),
]
Autoscaler = Annotated[
    bool,
    _autoscaler(
        "AUTOSCALER",
        "Run the autoscaler: preload models ahead of requests and demote idle ones.",
        "--autoscaler/--no-autoscaler",
    ),
]
Loading = Annotated[str, _autoscaler("LOADING", f"Loading policy, one of {LOADING_NAMES}.")]
MinPods = Annotated[
    int | None,
    _autoscaler(
        "MIN_PODS",
        "Scale between this number and --pods; 0 scales to zero. Default: keep --pods running.",
        min=0,
    ),
]
PodIdle = Annotated[
    float,
    _autoscaler("POD_IDLE", "Seconds from the last request to the stop of the last pod.", min=0.1),
]
PodStable = Annotated[
    float,
    _autoscaler(
        "POD_STABLE", "Seconds for which fewer pods must suffice before a pod stops.", min=0.1
    ),
]
Placement = Annotated[
    str,
    _gpu(
        "PLACEMENT",
        "Placement planner: it places models with a deadline and a profile on accelerators, each "
        f"copy in a pod of its own beside --pods: {PLACEMENT}.",
    ),
]
Mps = Annotated[
    bool,
    _gpu("MPS", "Start NVIDIA's MPS daemon: pods on one GPU compute at once, within their shares."),
]
Ephemeral = Annotated[
    bool,
    typer.Option(
        "--ephemeral",
        help="Begin without the models declared before, and forget this run's at its end. "
        "Default: models in the embedded Redis are declared again at the next start.",
        rich_help_panel="Platform",
    ),
]
