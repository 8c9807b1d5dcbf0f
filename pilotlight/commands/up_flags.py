"""The flags of `up`, with their environment variables and help."""

from pathlib import Path
from typing import Annotated

import typer

from pilotlight.commands.autoscaler import LOADING_NAMES
from pilotlight.commands.flags import setting
from registry.domain.model import PlacementName
from registry.domain.slots import default_slots

Pods = Annotated[int, setting("PODS", "Number of pods to start.", min=1, max=256)]
RedisUrl = Annotated[
    str | None,
    setting("REDIS_URL", "URL of a Redis to use as registry. Default: start an embedded one."),
]
Detach = Annotated[bool, typer.Option("--detach", "-d", help="Return when the platform is ready.")]
Host = Annotated[str, setting("HOST", "Address the gateway listens on.")]
Port = Annotated[
    int, setting("PORT", "Port the gateway listens on; 0 takes a free one.", min=0, max=65535)
]
GrpcPort = Annotated[
    int,
    setting("GATEWAY_GRPC_PORT", "Port of the gateway's V2 over gRPC; 0: none.", min=0, max=65535),
]
Slots = Annotated[
    int,
    setting(
        "SLOTS",
        "Concurrent requests per pod. 0: by device and profiles, "
        f"{default_slots()} on a CPU without profiles.",
        min=0,
    ),
]
Threads = Annotated[int, setting("THREADS", "CPU threads of one inference.", min=1)]
PodMemory = Annotated[
    str, setting("POD_MEMORY", "Memory for models per pod, such as 4Gi or 500MB.")
]
PodDisk = Annotated[
    str | None,
    setting(
        "POD_DISK",
        "Disk for model files per pod, such as 20Gi.",
        show_default="four fifths of the free space",
    ),
]
PodLinkRate = Annotated[
    str,
    setting(
        "POD_LINK_RATE",
        "Limit of each pod's download rate from object storage, such as 100MB/s. For experiments.",
    ),
]
Namespaces = Annotated[
    str,
    setting(
        "NAMESPACES",
        "Namespaces whose models pods serve, separated by commas.",
        show_default="all",
    ),
]
StoragePrefixes = Annotated[
    str,
    setting(
        "STORAGE_PREFIXES",
        "URIs that each namespace's models may read with the pods' credentials, such as "
        "'team=s3://team/; *=file:///models'.",
        show_default="everything",
    ),
]
Quotas = Annotated[
    str,
    setting(
        "QUOTAS",
        "Bytes per namespace, of memory on all pods and of cache on each, such as"
        " '*=memory:1Gi cache:20Gi'.",
        show_default="none",
    ),
]
AllowPickle = Annotated[
    bool,
    setting(
        "ALLOW_PICKLE",
        "Serve scikit-learn's model.joblib and model.pkl. Their code runs in a process per "
        "namespace without network, your files or other programs.",
        "--allow-pickle",
    ),
]
EngineCommand = Annotated[
    str,
    setting(
        "ENGINE_COMMAND",
        "Command of a server that speaks V2 and runs all models, such as MLServer's; each pod "
        "starts one. {repository}, {port}, {grpc_port} and {metrics_port} are replaced.",
        show_default="none",
    ),
]
EngineUrl = Annotated[
    str,
    setting(
        "ENGINE_URL",
        "URL of such a server that runs already, with --pods 1 and --engine-repository.",
        show_default="none",
    ),
]
EngineRepository = Annotated[
    str,
    setting(
        "ENGINE_REPOSITORY",
        "Folder from which that server reads its models.",
        show_default="by pod",
    ),
]
EngineMetrics = Annotated[
    str,
    setting(
        "ENGINE_METRICS",
        "URL of the server's metrics, for the memory of models.",
        show_default="memory of its process",
    ),
]
S3 = Annotated[
    bool,
    setting(
        "S3",
        "Start an object store with the sample models. With --no-s3, AWS_* name yours.",
        "--s3/--no-s3",
    ),
]
Objects = Annotated[
    Path | None,
    setting(
        "OBJECTS",
        "Folder the object store serves, with one folder per bucket. With this flag no "
        "sample models are made.",
        show_default="objects in --home",
    ),
]
AllowSimulatedWork = Annotated[
    bool,
    setting(
        "ALLOW_SIMULATED_WORK",
        "Honour the request header x-pilotlight-simulate. For experiments.",
        "--allow-simulated-work",
    ),
]
Autoscaler = Annotated[
    bool,
    setting(
        "AUTOSCALER",
        "Run the autoscaler: preload models ahead of requests and demote idle ones.",
        "--autoscaler/--no-autoscaler",
    ),
]
Loading = Annotated[str, setting("LOADING", f"Loading policy, one of {LOADING_NAMES}.")]
MinPods = Annotated[
    int | None,
    setting(
        "MIN_PODS",
        "Scale between this number and --pods; 0 scales to zero. Default: keep --pods running.",
        min=0,
    ),
]
PodIdle = Annotated[
    float,
    setting("POD_IDLE", "Seconds from the last request to the stop of the last pod.", min=0.1),
]
PodStable = Annotated[
    float,
    setting("POD_STABLE", "Seconds for which fewer pods must suffice before a pod stops.", min=0.1),
]
Placement = Annotated[
    str,
    setting(
        "PLACEMENT",
        "Planner that places models with a deadline and a profile on accelerators, each copy "
        f"in a pod of its own beside --pods: {', '.join(PlacementName)}.",
    ),
]
Mps = Annotated[
    bool,
    setting(
        "MPS",
        "Start NVIDIA's MPS daemon: pods on one GPU compute at once, within their shares.",
    ),
]
Ephemeral = Annotated[
    bool,
    typer.Option(
        "--ephemeral",
        help="Begin without the models declared before, and forget this run's at its end. "
        "Default: models in the embedded Redis are declared again at the next start.",
    ),
]
