"""Conversations with and without what pods have of prompts."""

import gzip
from pathlib import Path

from research.experiments.harness.experiment import Settings
from research.experiments.real_traces import prompts


def test_turns_that_are_known_are_cached_more_often(tmp_path: Path) -> None:
    rows = ["timestamp_ms,input_length,output_length,hash_ids"]
    for at in range(59):
        talk, turn = at * 7 % 11, at // 11
        ids = [1000 * talk + block for block in range(8 + turn)]
        known = " ".join(map(str, ids))
        rows.append(f"{1_800_000 + 1000 * at},{512 * len(ids)},200,{known}")
    content = "\n".join(rows).encode()
    (tmp_path / "mooncake_conversation.csv.gz").write_bytes(gzip.compress(content))
    result = prompts.run(Settings(is_quick=True, data=tmp_path))
    assert len(result.tables) == 3
    for table in result.tables:
        cached = {row[:2]: row[-1] for row in table.rows}
        for policy in ("auto", "colocation"):
            unread, read = cached[policy, "no"], cached[policy, "yes"]
            assert isinstance(unread, float)
            assert isinstance(read, float)
            assert read > unread + 0.3


def test_azures_prompts_are_not_known(tmp_path: Path) -> None:
    rows = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00.0,600,5\n" + "".join(
        f"2023-11-16 18:30:{at:02d}.0,1024,5\n" for at in range(10, 20)
    )
    path = tmp_path / "azure_llm_2023_conv.csv.gz"
    path.write_bytes(gzip.compress(rows.encode()))
    unknown, alike = prompts.run(Settings(is_quick=True, data=tmp_path)).tables
    assert {row[-1] for row in unknown.rows} == {0.0}
    assert all(isinstance(row[-1], float) and row[-1] > 0.2 for row in alike.rows)
