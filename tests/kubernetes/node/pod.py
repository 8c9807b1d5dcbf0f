"""The life of one pod on this node, in its own thread: start, probe, report, end."""

import contextlib
import logging
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kubernetes.node.cluster import TROUBLE, Cluster
from tests.kubernetes.node.container import Container, mounts_of, timestamp
from tests.kubernetes.node.environment import BadReference, command, environment
from tests.kubernetes.node.images import UnknownImage, image
from tests.kubernetes.node.sandbox import Sandbox, open_sandbox
from tests.kubernetes.node.volumes import make_volume
from tests.kubernetes.places import HOST_ADDRESS, NAMESPACE

logger = logging.getLogger(__name__)

TICK_S = 0.1
DENIED = "denied"
"""File in the node's folder: what network policies refuse, an address a line."""
BYTE_CODE = "/var/cache/byte-code"
"""Folder for Python's bytecode, shared by all containers; a built image would contain it."""
RETRY_S = 1.0
VOLUMES_PERIOD_S = 60.0
"""Period in which a kubelet updates mounted ConfigMaps, Secrets and tokens."""


class Pod:
    """One pod; `run` returns when it has ended and the API server has deleted it."""

    def __init__(self, manifest: Mapping[str, Any], cluster: Cluster, folder: Path) -> None:
        self.manifest = manifest
        self._cluster = cluster
        self._folder = folder / str(manifest["metadata"]["uid"])
        self._sandbox: Sandbox | None = None
        self._containers: list[Container] = []
        self._is_initialised = False
        self._reported: dict[str, Any] = {}
        self._conditions: dict[str, dict[str, str]] = {}
        self._started_at = timestamp()
        self._grace_s: float | None = None
        self._wake = threading.Event()
        self._volumes_due_s = 0.0

    @property
    def name(self) -> str:
        return f"{self.manifest['metadata']['namespace']}/{self.manifest['metadata']['name']}"

    def end(self, grace_s: float) -> None:
        """Request the end, or shorten the grace period of an earlier request."""
        self._grace_s = grace_s
        self._wake.set()

    def run(self) -> None:
        self._folder.mkdir(parents=True)
        try:
            self._start()
            while self._grace_s is None:
                self._tick()
                self._wake.wait(TICK_S)
            self._stop(self._grace_s)
        except Exception:
            logger.exception("pod %s is given up", self.name)
        finally:
            self._release()

    def _start(self) -> None:
        while self._grace_s is None:
            try:
                self._sandbox = self._sandbox or self._open_sandbox()
                volumes = self._make_volumes(self._sandbox)
                if not self._run_init_containers(self._sandbox, volumes):
                    return
                self._containers = [
                    self._container(spec, self._sandbox, volumes)
                    for spec in self.manifest["spec"]["containers"]
                ]
                for container in self._containers:
                    container.start()
                return
            except (BadReference, UnknownImage) as error:
                self._report_waiting(error)
                self._wake.wait(RETRY_S)

    def _open_sandbox(self) -> Sandbox:
        """Pods outside the platform's namespace do not reach the addresses that a test denies."""
        sandbox = open_sandbox()
        denied = self._folder.parents[1] / DENIED
        if self._namespace != NAMESPACE and denied.exists():
            for address in denied.read_text().split():
                sandbox.deny(address)
        return sandbox

    def _make_volumes(self, sandbox: Sandbox) -> dict[str, Path]:
        self._volumes_due_s = time.monotonic() + VOLUMES_PERIOD_S
        return {
            volume["name"]: make_volume(
                self.manifest,
                volume,
                self._folder / "volumes" / volume["name"],
                address=sandbox.address,
                lookup=lambda kind, name: self._cluster.entries(kind, self._namespace, name),
                token=lambda spec: self._cluster.token(self.manifest, spec),
            )
            for volume in self.manifest["spec"].get("volumes", [])
        }

    @property
    def _namespace(self) -> str:
        return str(self.manifest["metadata"]["namespace"])

    def _run_init_containers(self, sandbox: Sandbox, volumes: Mapping[str, Path]) -> bool:
        for spec in self.manifest["spec"].get("initContainers", []):
            container = self._container(spec, sandbox, volumes)
            container.start()
            while container.exit_code != 0:
                container.tick(time.monotonic(), restarts=True)
                self._wake.wait(TICK_S)
                if self._grace_s is not None:
                    container.stop(grace_s=self._grace_s)
                    return False
        self._is_initialised = True
        return True

    def _container(
        self, spec: Mapping[str, Any], sandbox: Sandbox, volumes: Mapping[str, Path]
    ) -> Container:
        program = image(spec["image"])
        variables = environment(
            self.manifest,
            spec,
            address=sandbox.address,
            lookup=lambda kind, name: self._cluster.entries(kind, self._namespace, name),
        )
        variables = {
            "PATH": program.path,
            "PYTHONPYCACHEPREFIX": BYTE_CODE,
            **program.variables,
            **variables,
        }
        of_image = {**program.folders, "/etc/hosts": self._cluster.hosts_file(self._namespace)}
        always = [
            {"source": str(source), "target": target, "read_only": True}
            for target, source in of_image.items()
        ]
        bytecode = {"source": str(self._cluster.bytecode), "target": BYTE_CODE}
        security = spec.get("securityContext", {})
        return Container(
            spec=spec,
            sandbox=sandbox,
            specification=self._folder / f"{spec['name']}.json",
            log=self._cluster.logs / f"{self._namespace}_{self.manifest['metadata']['name']}.log",
            program={
                "command": command(spec, program, variables),
                "environment": variables,
                "directory": spec.get("workingDir") or program.directory,
                "mounts": mounts_of(spec, volumes, [*always, {**bytecode, "read_only": False}]),
                "read_only_root": bool(security.get("readOnlyRootFilesystem")),
            },
        )

    def _tick(self) -> None:
        always = self.manifest["spec"].get("restartPolicy", "Always") == "Always"
        now_s = time.monotonic()
        if self._sandbox is not None and now_s >= self._volumes_due_s:
            with contextlib.suppress(BadReference, *TROUBLE):
                self._make_volumes(self._sandbox)
        for container in self._containers:
            failed = container.exit_code not in {None, 0}
            on_failure = self.manifest["spec"].get("restartPolicy") == "OnFailure" and failed
            container.tick(now_s, restarts=always or on_failure)
        self._report(self._phase())

    def _phase(self) -> str:
        codes = [container.exit_code for container in self._containers]
        if self.manifest["spec"].get("restartPolicy", "Always") == "Always" or None in codes:
            return "Running"
        return "Failed" if any(codes) else "Succeeded"

    def _report_waiting(self, error: Exception) -> None:
        reason = "ErrImagePull" if isinstance(error, UnknownImage) else "CreateContainerConfigError"
        waiting = {"waiting": {"reason": reason, "message": str(error)}}
        statuses = [
            {"name": spec["name"], "image": spec["image"], "imageID": "", "ready": False}
            | {"restartCount": 0, "state": waiting}
            for spec in self.manifest["spec"]["containers"]
        ]
        self._report("Pending", statuses)

    def _report(self, phase: str, statuses: list[dict[str, Any]] | None = None) -> None:
        statuses = statuses or [container.status() for container in self._containers]
        is_ready = bool(statuses) and all(status["ready"] for status in statuses)
        status: dict[str, Any] = {
            "phase": phase,
            "startTime": self._started_at,
            "hostIP": HOST_ADDRESS,
            "hostIPs": [{"ip": HOST_ADDRESS}],
            "containerStatuses": statuses,
            "conditions": [
                self._condition("Initialized", self._is_initialised),
                self._condition("ContainersReady", is_ready),
                self._condition("Ready", is_ready),
            ],
        }
        if self._sandbox is not None:
            address = self._sandbox.address
            status |= {"podIP": address, "podIPs": [{"ip": address}]}
        if status != self._reported and self._cluster.patch_status(self.manifest, status):
            self._reported = status

    def _condition(self, kind: str, is_true: bool) -> dict[str, str]:
        status = str(is_true)
        known = self._conditions.get(kind)
        if known is None or known["status"] != status:
            known = {"type": kind, "status": status, "lastTransitionTime": timestamp()}
            self._conditions[kind] = known
        return known

    def _stop(self, grace_s: float) -> None:
        stops = [
            threading.Thread(target=container.stop, kwargs={"grace_s": grace_s})
            for container in self._containers
        ]
        for stop in stops:
            stop.start()
        while any(stop.is_alive() for stop in stops):
            self._report("Running")  # the last results of the probes stay valid until the end
            time.sleep(TICK_S)
            for container in self._containers:
                container.tick(time.monotonic(), restarts=False)

    def _release(self) -> None:
        for container in self._containers:
            container.stop(grace_s=0.0)
        if self._sandbox is not None:
            self._sandbox.close()
        self._cluster.delete(self.manifest)
        shutil.rmtree(self._folder, ignore_errors=True)
