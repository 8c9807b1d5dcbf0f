"""The benchmark of a GPU, with a device that replaces one."""

import sys
from dataclasses import replace

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.gpu.measure import Measured, Plan, marks, measure, summary
from benchmarks.gpu.page import NOTHING, PARTS, with_section
from benchmarks.gpu.rings import Ring
from benchmarks.gpu.starts import measure_starts, start_table
from benchmarks.gpu.subject import Subject
from benchmarks.tiers import ours
from benchmarks.tiers.contestants import Start
from pilotlight.sample_models.make_model import make_model
from runtime.device.accelerator import PeakMemory
from runtime.device.staged_memory import StagedMemory
from runtime.tiers.host_tier import HostTier
from tests.runtime.fake_engine import FakeEngine
from tests.servers import REPOSITORY

PAGE = REPOSITORY / "docs" / "benchmarks.md"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = make_model("tiny-t5", tmp_path_factory.mktemp("gpu") / "tiny-t5")
    return Plan(
        folder,
        folder,
        repeats=2,
        inferences=2,
        cycles=3,
        pinned_bytes=1 << 16,
        rings=(Ring(2, 1 << 16, 1), Ring(3, 1 << 14, 2)),
    )


class LeakingEngine(FakeEngine):
    """Keeps a reference to every slab."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[torch.Tensor] = []

    def allocate(self, size_bytes: int) -> torch.Tensor:
        self.kept.append(super().allocate(size_bytes))
        return self.kept[-1]


def measured_on(engine: FakeEngine, plan: Plan) -> Measured:
    def allocated_bytes() -> int:
        return engine.allocated_bytes

    return measure(Subject("fake", engine, allocated_bytes, allocated_bytes), plan)


@pytest.fixture(scope="module")
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def measured(engine: FakeEngine, plan: Plan) -> Measured:
    return measured_on(engine, plan)


def test_measures_copies_serving_and_cycles(
    measured: Measured, engine: FakeEngine, plan: Plan
) -> None:
    assert len(measured.copies.load) == len(measured.copies.pinned) == plan.repeats
    assert measured.copies.size_bytes > 0
    assert len(measured.serving.alone_s) == plan.repeats * plan.inferences
    assert len(measured.serving.beside_s) == plan.repeats * plan.inferences
    assert measured.serving.loads >= plan.repeats
    assert len(measured.cycles.allocated) == plan.cycles + 1
    assert measured.cycles.left_bytes == 0
    assert [each.ring for each in measured.rings] == list(plan.rings)
    assert all(len(each.rates) == plan.repeats for each in measured.rings)
    assert not engine.spoiled
    assert "pinned memory" in summary(measured)


@pytest.mark.slow
def test_every_kind_of_cold_start_is_timed(plan: Plan) -> None:
    engine = FakeEngine()
    memory = StagedMemory(engine, buffers=2, buffer_bytes=1 << 16, readers=1)
    starts = measure_starts([plan.served], memory, repeats=1)
    memory.close()
    ways = {each.way for each in starts}
    assert sum(way.startswith("Pilotlight") for way in ways) >= 1
    assert any("from_pretrained" in way for way in ways)
    assert any("load_file" in way for way in ways)
    assert len(starts) == len(ways)
    assert all(way in start_table(starts) for way in ways)
    assert engine.allocated_bytes == 0


def test_a_tier_without_room_is_named_in_place_of_its_rows(
    plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ours, "enter_host_tier", lambda folder, budget: HostTier(None, 0))
    skipped: list[str] = []
    with ours.our_ways(plan.served, skipped) as ways:
        assert len(ways) == 2
    assert skipped == [f"{plan.served.name}: tier host has no room in /dev/shm"]


def test_a_model_whose_image_is_there_already_keeps_its_rows(plan: Plan) -> None:
    with ours.host_image(plan.served) as first, ours.host_image(plan.served) as second:
        assert first is not None
        assert second is not None
        skipped: list[str] = []
        with ours.our_ways(plan.served, skipped) as ways:
            assert [way.starts for way in ways].count((Start.HOST,)) == 2
        assert skipped == []
        second().close()


@pytest.mark.slow
def test_leaked_memory_misses_its_target(plan: Plan) -> None:
    measured = measured_on(LeakingEngine(), replace(plan, rings=(), repeats=1))
    assert measured.cycles.left_bytes >= plan.cycles * measured.copies.size_bytes
    *_, memory = marks(measured)
    assert not memory.is_reached


def test_targets_are_checked_against_the_figures(measured: Measured) -> None:
    copies = replace(measured.copies, pinned=[10.0, 10.0], load=[9.0, 9.5])
    serving = replace(measured.serving, alone_s=[1.0, 1.0], beside_s=[1.2, 1.0, 1.2])
    found = marks(replace(measured, copies=copies, serving=serving))
    share, rate, served, memory = (mark.is_reached for mark in found)
    assert (share, rate, served, memory) == (True, False, False, True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_skips_without_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "gpu"])
    command.main()
    assert "skipped, no CUDA device" in capsys.readouterr().out


@pytest.mark.slow
def test_dry_run_measures_every_mark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "gpu", "--dry", "--docs"])
    before = PAGE.read_text()
    peak = PeakMemory("cpu")
    command.main()
    assert PAGE.read_text() == before
    used_bytes = peak.used_bytes()
    assert used_bytes is None or used_bytes < 2 << 30, "a cache took what memory was free"
    printed = capsys.readouterr().out
    for promise in (
        "of a pinned copy",
        "PCIe Gen5",
        "p50 beside loads",
        "loads and unloads",
        "eager one by one",
        "transformers' own",
        "two pods with shares: inferences/s",
        "two pods with shares: p99",
    ):
        assert promise in printed
    assert printed.count("host to first token of") == 2
    assert "failed:" not in printed


@pytest.mark.parametrize("part", PARTS)
def test_a_part_replaces_its_section_of_the_page(part: str) -> None:
    page = PAGE.read_text()
    changed = with_section(page, part, "| a | b |")
    assert changed.count("| a | b |") == page.count("| a | b |") + 1
    assert changed.count(NOTHING) == page.count(NOTHING) - 1
    assert with_section(changed, part, NOTHING) == page
    with pytest.raises(ValueError, match="must have the lines"):
        with_section("# Benchmarks", part, "text")


def test_an_unknown_benchmark_is_rejected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "gpus"])
    with pytest.raises(SystemExit) as ended:
        command.main()
    assert ended.value.code == 2
    assert "gpus" in capsys.readouterr().err
