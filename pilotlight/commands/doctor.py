"""`doctor`: what would not work on a cluster, or on this machine, and the way out."""

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from pilotlight.commands import flags
from pilotlight.doctor.finding import Finding, Severity
from pilotlight.doctor.machine import machine_findings
from pilotlight.errors import RequestFailed, requires_extra
from pilotlight.output import Output
from pilotlight.state_dir import StateDir

app = typer.Typer()


@app.command()
def doctor(
    *,
    machine: Annotated[
        bool, typer.Option("--machine", help="Examine this machine, for `pilotlight up`.")
    ] = False,
    namespace: Annotated[
        str, typer.Option("-n", "--namespace", help="Namespace of the installation.")
    ] = "pilotlight",
    home: flags.Home = None,
    port: Annotated[int, typer.Option(help="With --machine: port of the gateway.")] = 8080,
    json_: flags.Json = False,
) -> None:
    """Say what would not work on the kubeconfig's cluster, or on this machine, and the way out."""
    if machine:
        findings = machine_findings(StateDir.of(home).root, port=port)
    else:
        findings = asyncio.run(_examine_cluster(namespace))
    lines = [line for each in findings for line in _lines(each)]
    Output(json_).result([asdict(each) for each in findings], lines)
    if any(each.severity is Severity.PROBLEM for each in findings):
        raise typer.Exit(1)


async def _examine_cluster(namespace: str) -> list[Finding]:
    with requires_extra("kubernetes"):
        from kubernetes.aio.config import ConfigException

        from autoscaler.kubernetes.cluster.cluster_api import connect
        from autoscaler.kubernetes.errors import KubernetesError
        from pilotlight.doctor.cluster_facts import read_cluster
        from pilotlight.doctor.cluster_findings import cluster_findings
    try:
        client = await connect()
    except ConfigException as error:
        raise RequestFailed(
            f"no cluster: {error}; set KUBECONFIG, or use --machine for this machine"
        ) from error
    try:
        return cluster_findings(await read_cluster(client, namespace))
    except KubernetesError as error:
        raise RequestFailed(str(error)) from error
    finally:
        await client.close()


def _lines(finding: Finding) -> list[str]:
    first = f"{finding.severity:8} {finding.subject}: {finding.detail}"
    return [first, f"         -> {finding.remedy}"] if finding.remedy else [first]
