"""Tables of a comparison: rates, latencies, ratios, targets."""

from statistics import median
from typing import Final

from benchmarks.proxy.compare import (
    CELLS,
    FOREIGN_CORES,
    ComparisonResult,
    LoadCell,
    LoadSample,
    samples_of,
)
from benchmarks.proxy.serving_systems import (
    ASKING,
    DIRECT,
    ENVOY,
    NGINX,
    PILOTLIGHT,
    PYTHON_PEERS,
    RAW,
    RAY_HAPROXY,
    CoreLayout,
)
from benchmarks.quantiles import spread

_TITLES: Final = {
    CoreLayout.SHARED: "S: system and pod (uvicorn) on one core; generator and Redis on the other",
    CoreLayout.ALONE: "G: system alone on one core; pod (nginx), Redis and generator on the other",
    CoreLayout.BOTH: "Both: everything on both cores (systems of many processes)",
}
_SHARED_16, _SHARED_64 = LoadCell(16, CELLS[0].body_bytes), LoadCell(64, CELLS[0].body_bytes)
_CPU_MARKS: Final = (
    (CELLS[0], RAW, 0.9),
    (CELLS[2], ENVOY, 0.6),
    (CELLS[3], ENVOY, 0.7),
    (CELLS[-1], ENVOY, 1.0),
)


def summary(compared: ComparisonResult) -> str:
    """The whole report in Markdown."""
    parts = []
    everything, compared = (
        compared,
        ComparisonResult(_undisturbed(compared.samples), compared.skipped),
    )
    for setting, title in _TITLES.items():
        of_setting = [sample for sample in compared.samples if sample.setting is setting]
        if of_setting:
            parts += [f"### {title}", _table(of_setting, setting)]
    parts += ["### Ratios of the gateway's rate", _ratios(compared.samples)]
    parts += ["### Marks", _marks(compared.samples)]
    parts += [
        f"Skipped: {name}: {reason.splitlines()[0]}" for name, reason in compared.skipped.items()
    ]
    bad = [sample for sample in everything.samples if sample.load.errors or not _is_right(sample)]
    parts += [
        f"ERRORS: {sample.contestant}, {sample.setting}, {sample.cell.label}: "
        f"{sample.load.errors} of {sample.load.requests}, status {sample.answer_status}"
        for sample in bad
    ]
    total, kept = len(everything.samples), len(compared.samples)
    noisy = sum(sample.foreign_cores > FOREIGN_CORES for sample in compared.samples)
    parts.append(
        f"Of {total} bursts {len(bad)} had errors. {total - kept} were left out, since other work "
        f"ran on the machine and there is an undisturbed one of the same cell; {noisy} disturbed "
        f"ones (above {FOREIGN_CORES:g} cores) are included."
    )
    probes = spread([sample.probe_ms for sample in compared.samples])
    parts.append(
        f"A fixed piece of Python took {probes.lowest:.1f} to {probes.highest:.1f} ms (median "
        f"{probes.median:.1f}) beside these bursts, by the machine's speed."
    )
    return "\n\n".join(parts)


def _undisturbed(samples: list[LoadSample]) -> list[LoadSample]:
    """By cell, the bursts without other load on the machine; all bursts if there are none."""
    quiet = [sample for sample in samples if sample.foreign_cores <= FOREIGN_CORES]
    has_quiet = {(sample.contestant, sample.setting, sample.cell) for sample in quiet}
    return quiet + [
        sample
        for sample in samples
        if (sample.contestant, sample.setting, sample.cell) not in has_quiet
    ]


def _is_right(sample: LoadSample) -> bool:
    return sample.answer_status == 200


def _table(samples: list[LoadSample], setting: CoreLayout) -> str:
    cells = [cell for cell in CELLS if any(sample.cell == cell for sample in samples)]
    names = list(dict.fromkeys(sample.contestant for sample in samples))
    names.sort(key=lambda name: -_rate(samples, name, setting, cells[-1]))
    lines = [
        "requests/s (lowest to highest) / p50 ms / p99 ms / CPU us per request",
        "",
        "| | " + " | ".join(cell.label for cell in cells) + " |",
        "|---" * (len(cells) + 1) + "|",
    ]
    for name in sorted(names, key=_order):
        row = [_entry(samples_of(samples, name, setting, cell)) for cell in cells]
        lines.append(f"| {name} | " + " | ".join(row) + " |")
    return "\n".join(lines)


def _order(name: str) -> int:
    first = [DIRECT, NGINX, "HAProxy", ENVOY, PILOTLIGHT, ASKING]
    return first.index(name) if name in first else len(first)


def _entry(samples: list[LoadSample]) -> str:
    if not samples:
        return "-"
    rate = spread([sample.load.requests_per_s for sample in samples])
    p50 = median(sample.load.p50_ms for sample in samples)
    p99 = median(sample.load.p99_ms for sample in samples)
    cpu_us = median(sample.cpu_us for sample in samples)
    return (
        f"{rate.median:,.0f} ({rate.lowest:,.0f} to {rate.highest:,.0f}) / {p50:.2f} / {p99:.2f} / "
        f"{cpu_us:.0f}"
    )


def _rate(samples: list[LoadSample], name: str, setting: CoreLayout, cell: LoadCell) -> float:
    found = samples_of(samples, name, setting, cell)
    return median(sample.load.requests_per_s for sample in found) if found else 0.0


def _ratios(samples: list[LoadSample]) -> str:
    lines = [
        "| setting, cell | to nginx | to the best Python peer | to Ray Serve behind HAProxy |",
        "|---|---|---|---|",
    ]
    for setting in (CoreLayout.SHARED, CoreLayout.ALONE):
        for cell in CELLS:
            ours = _rate(samples, PILOTLIGHT, setting, cell)
            if not ours:
                continue
            peers = [(_rate(samples, name, setting, cell), name) for name in PYTHON_PEERS]
            best, name = max(peers)
            ray = _rate(samples, RAY_HAPROXY, setting, cell)
            nginx = _rate(samples, NGINX, setting, cell)
            lines.append(
                f"| {setting}, {cell.label} | {_ratio(ours, nginx)} | {_ratio(ours, best)} "
                f"({name}) | {_ratio(ours, ray)} |"
            )
    return "\n".join(lines)


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}" if theirs else "-"


def _marks(samples: list[LoadSample]) -> str:
    """Targets of the design's section 12 and of the work on the request path, met or missed."""
    alone, shared = CoreLayout.ALONE, CoreLayout.SHARED
    tiny, lines = CELLS[:4], []

    def mark(name: str, value: float, limit: float, *, at_most: bool = False) -> None:
        if value:
            is_met = value <= limit if at_most else value >= limit
            sign = "<=" if at_most else ">="
            verdict = "met" if is_met else "MISSED"
            lines.append(f"- {verdict}: {name}: {value:,.2f} ({sign} {limit:,g})")

    for cell in tiny[1:]:
        mark(f"requests/s on one core, {cell.label}", _rate(samples, PILOTLIGHT, alone, cell), 6000)
    rates = [rate for cell in tiny[1:] if (rate := _rate(samples, PILOTLIGHT, alone, cell))]
    if len(rates) == len(tiny) - 1:
        mark("flat from 16 to 512 clients, lowest by highest", min(rates) / max(rates), 0.8)
    mark("requests/s on one core, 220 KB", _rate(samples, PILOTLIGHT, alone, CELLS[-1]), 1000)
    for cell in tiny[1:]:
        nginx = _rate(samples, NGINX, alone, cell)
        ours = _rate(samples, PILOTLIGHT, alone, cell)
        mark(f"part of nginx, G, {cell.label}", ours / nginx if nginx else 0.0, round(1 / 6, 3))
    ray = _rate(samples, RAY_HAPROXY, shared, _SHARED_16)
    if ray:
        ours = _rate(samples, PILOTLIGHT, shared, _SHARED_16)
        mark("times Ray Serve behind HAProxy, pod on the same core (S), 16 clients", ours / ray, 7)
        ours = _rate(samples, PILOTLIGHT, alone, _SHARED_16)
        mark("times the same, gateway alone on its core (G by S), 16 clients", ours / ray, 7)
    added = _p50(samples, PILOTLIGHT, CELLS[0]) - _p50(samples, DIRECT, CELLS[0])
    mark("ms added at p50, S, 1 client", added, 0.12, at_most=True)
    asking, ours = (_cpu_us(samples, name, CELLS[2]) for name in (ASKING, PILOTLIGHT))
    name = f"CPU per request asking Redis to reserving locally, G, {CELLS[2].label}"
    mark(name, asking / ours if ours else 0.0, 1.3, at_most=True)
    for cell, peer, most in _CPU_MARKS:
        theirs = _cpu_us(samples, peer, cell)
        ours = _cpu_us(samples, PILOTLIGHT, cell)
        name = f"CPU per request to {peer}'s, G, {cell.label}"
        mark(name, ours / theirs if theirs else 0.0, most, at_most=True)
    return "\n".join(lines)


def _p50(samples: list[LoadSample], name: str, cell: LoadCell) -> float:
    found = samples_of(samples, name, CoreLayout.SHARED, cell)
    return median(sample.load.p50_ms for sample in found) if found else 0.0


def _cpu_us(samples: list[LoadSample], name: str, cell: LoadCell) -> float:
    found = samples_of(samples, name, CoreLayout.ALONE, cell)
    return median(sample.cpu_us for sample in found) if found else 0.0
