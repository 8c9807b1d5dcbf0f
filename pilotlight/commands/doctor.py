"""`doctor`: finds what would not work on a cluster or on this machine, and how to mend it."""

import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pilotlight.commands import flags
from pilotlight.commands.kubernetes import cluster_client
from pilotlight.doctor import Finding, Severity
from pilotlight.doctor.machine import machine_findings
from pilotlight.errors import InvalidInput
from pilotlight.output import Output
from pilotlight.state_dir import StateDir

app = typer.Typer()


@app.command()
def doctor(
    *,
    machine: Annotated[
        bool,
        typer.Option(
            "--machine", help="Examine this machine even where there is a cluster's kubeconfig."
        ),
    ] = False,
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Examine the cluster of this context of the kubeconfig."),
    ] = None,
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="On a cluster: namespace of the installation.")
    ] = "pilotlight",
    probe: Annotated[
        bool,
        typer.Option(
            "--probe/--no-probe",
            help="On a cluster: try whether network policies are enforced, by a pod in namespace"
            " default that is deleted again.",
        ),
    ] = True,
    home: flags.Home = None,
    port: Annotated[int, typer.Option(help="On this machine: port of the gateway.")] = 8080,
    json_: flags.Json = False,
) -> None:
    """Say what would not work, and how to mend it: on the kubeconfig's cluster, else here."""
    output = Output(json_)
    if machine and context is not None:
        raise InvalidInput(["--machine and --context examine different things: give one"])
    if machine or (context is None and not has_kubeconfig()):
        findings = machine_findings(StateDir.of(home).root, port=port)
        if not machine:
            output.note("examined this machine; with a kubeconfig, --context NAME its cluster")
    else:
        findings = asyncio.run(_examine_cluster(namespace, context, probe=probe))
    lines = [line for each in findings for line in _lines(each)]
    output.result([asdict(each) for each in findings], lines)
    if any(each.severity is Severity.PROBLEM for each in findings):
        raise typer.Exit(1)


def has_kubeconfig() -> bool:
    """Whether kubectl would know a cluster: by KUBECONFIG, by its default file, or in a pod."""
    listed = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    files = [Path(each) for each in listed.split(os.pathsep) if each]
    return any(each.is_file() for each in files) or "KUBERNETES_SERVICE_HOST" in os.environ


async def _examine_cluster(namespace: str, context: str | None, *, probe: bool) -> list[Finding]:
    remedy = "set KUBECONFIG or --context, or use --machine for this machine"
    async with cluster_client(context, remedy=remedy) as client:
        from pilotlight.doctor.cluster_facts import read_cluster
        from pilotlight.doctor.cluster_findings import cluster_findings
        from pilotlight.doctor.policy_probe import try_policies

        facts = await read_cluster(client, namespace)
        return cluster_findings(facts) + (await try_policies(client, facts) if probe else [])


def _lines(finding: Finding) -> list[str]:
    first = f"{finding.severity:8} {finding.subject}: {finding.detail}"
    return [first, f"         -> {finding.remedy}"] if finding.remedy else [first]
