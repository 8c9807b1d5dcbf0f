"""What a run's code prints is kept, bounded, and shown by `explain` and `workflow status`."""

from pathlib import Path

import pytest

from tests.pilotlight.conftest import run_cli
from tests.workflows.service.harness import WorkflowHarness
from workflows.runner import MAX_PRINTED_BYTES, Printed


def test_text_is_kept_up_to_the_limit_and_the_cut_is_marked() -> None:
    printed = Printed()
    assert printed.add("a" * 10) == "a" * 10
    kept = printed.add("ü" * MAX_PRINTED_BYTES)
    assert printed.add("more") == ""
    assert printed.is_full
    assert kept.endswith("… (no more is kept)\n")
    assert printed.text.count("a") == 10
    assert printed.text.count("ü") == (MAX_PRINTED_BYTES - 10) // 2


@pytest.mark.slow
def test_printed_lines_are_shown_also_of_a_run_that_fails(
    harness: WorkflowHarness, tmp_path: Path
) -> None:
    file = tmp_path / "told.py"
    file.write_text(
        "import sys\n"
        "from pilotlight.workflow import model, workflow\n\n\n"
        "@workflow\n"
        "async def told(fails: bool = False):\n"
        "    print('begun', 1, flush=True)\n"
        "    text = (await model('writer')('a'))['text']\n"
        "    print('got a text', file=sys.stderr)\n"
        "    if fails:\n"
        "        raise KeyError('gone')\n"
        "    return text\n"
    )
    gateway = ("--gateway", harness.pool.gateway.url)
    assert run_cli("workflow", "deploy", str(file), *gateway).status == 0
    ran = run_cli("workflow", "run", "told", "--json", *gateway)
    lines = ["printed:", "  begun 1", "  got a text"]
    assert run_cli("explain", ran.document["id"], *gateway).out.splitlines()[-3:] == lines

    failed = run_cli("workflow", "run", "told", '{"fails": true}', *gateway)
    assert failed.status == 1
    run_id = failed.err.split()[1].rstrip(";")
    assert failed.err.startswith(f"run: {run_id}; `pilotlight explain {run_id}`")
    assert "KeyError: 'gone' (line 11)" in failed.err
    explained = run_cli("explain", run_id, *gateway)
    assert "failed" in explained.out
    assert "error: KeyError: 'gone' (line 11)" in explained.out
    assert explained.out.splitlines()[-3:] == lines
    for words in ((run_id,), ("told", run_id)):
        status = run_cli("workflow", "status", *words, *gateway)
        assert status.out.splitlines()[-3:] == lines, status.err
    assert run_cli("workflow", "status", "a", "b", "c", *gateway).status == 2


@pytest.mark.slow
def test_a_runs_text_is_bounded_and_other_runs_get_none_of_it(harness: WorkflowHarness) -> None:
    name = harness.deploy(
        """
        print("at the load of the file")

        @workflow
        async def f(lines: int):
            for number in range(lines):
                print("x" * 1000)
            return lines
        """
    )
    loud = harness.wait_ended(harness.start(name, {"lines": 100}))
    assert MAX_PRINTED_BYTES <= len(loud["printed"].encode()) < MAX_PRINTED_BYTES + 100
    assert "printed" not in harness.wait_ended(harness.start(name, {"lines": 0}))
