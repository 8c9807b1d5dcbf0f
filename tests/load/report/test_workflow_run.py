"""The plot of a workflow's run: what of its document is drawn, and where."""

import io
from typing import Any

import pytest
from matplotlib.patches import Rectangle

from load.report.machine_plots import run_timeline

DOCUMENT: dict[str, Any] = {
    "id": "0123456789abcdef", "workflow": "answer", "status": "succeeded",
    "steps": [
        {"step": 0, "model": "embed", "pod": "pod-b", "predicted": True, "sent_s": 0.1,
         "ended_s": 0.6, "stages_ms": {"load": 200.0, "infer": 100.0, "queue": 5.0}},
        {"step": 1, "model": "judge", "pod": "pod-a", "predicted": False, "sent_s": 0.6,
         "ended_s": 0.9, "stages_ms": {"infer": 300.0}},
        {"step": 2, "model": "late", "pod": "", "predicted": True},
    ],
    "preloads": [{"model": "judge", "pod": "pod-a", "begun_s": 0.1, "ended_s": 0.4}],
}  # fmt: skip


def test_draws_a_row_per_step_and_load_by_pod() -> None:
    figure = run_timeline(DOCUMENT)
    [axes] = figure.axes
    labels = [each.get_text() for each in axes.get_yticklabels()]
    assert labels == ["pod-a  judge ahead", "pod-a  1 judge (not predicted)", "pod-b  0 embed"]
    assert sorted(axes.get_xlim())[1] >= 0.9
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    embed = [bar for bar in bars if round(bar.get_y() + 0.35) == 2]
    spans = [(round(bar.get_x(), 3), round(bar.get_width(), 3)) for bar in embed]
    assert spans == [(0.1, 0.2), (0.3, 0.2), (0.5, 0.1)]  # queue, load, infer
    content = io.BytesIO()
    figure.savefig(content, format="svg")
    assert b"load ahead" in content.getvalue()


def test_a_run_without_sent_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="no step"):
        run_timeline({**DOCUMENT, "steps": [], "preloads": []})
