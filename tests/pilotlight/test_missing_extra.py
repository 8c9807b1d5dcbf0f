"""Without the extra `load` the verbs that need it say so in one line; the others work."""

from __future__ import annotations

import subprocess
import sys

import pytest

_WITHOUT_PYARROW = (
    "import sys; sys.modules['pyarrow'] = None; "
    "from pilotlight.cli import main; raise SystemExit(main())"
)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["simulate", "--cluster", "c.yaml", "--trace", "t.csv"], id="simulate"),
        pytest.param(["experiment"], id="experiment"),
        pytest.param(["report", "run.parquet"], id="report"),
        pytest.param(["load", "run", "--trace", "t.csv", "--url", "http://gateway"], id="load-run"),
    ],
)
def test_says_which_extra_is_missing(arguments: list[str]) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PYARROW, *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert "pyarrow is not installed; it comes with `pip install 'pilotlight[load]'`" in (
        " ".join(ended.stderr.split())
    )
