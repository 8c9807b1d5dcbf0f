import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as parquet
import pytest

from load.trace_spec import open_trace
from load.traces.batches import times_s
from load.traces.trace_formats import formats
from tests.load.rows import column, named, write

SAMPLES = {
    "arrivals": "at_s,tenant,model,input_size,output_size,deadline_s\n"
    "0.5,a,x,3,7,1.5\n2,b,y,1,0,\n",
    "azure-llm": "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n",
    "azure-functions-2019": "HashOwner,HashApp,HashFunction,Trigger,1,2,3\n"
    "o1,a1,f1,http,0,2,1\no2,a2,f2,timer,1,0,0\n",
    "azure-functions-2021": "app,func,end_timestamp,duration\na,f,1.5,1.0\nb,g,2.5,0.25\n",
    "gentd26-requests": "gmt_create,predict_type,num_images_per_prompt,"
    "checkpoint_model_version_id\n2024-11-15 16:57:50,T,1.0,M0\n2024-11-15 16:58:00,T,,\n",
    "gentd26-per-minute": "minute,model,count\n3,M0,1\n5,,2\n5,M1,1\n",
    "mooncake": "timestamp_ms,input_length,output_length,hash_ids\n"
    "0,600,5,0 1\n1500,1100,7,0 1 9\n",
    "huawei": "minute,R1,R2\n10,2,1\n11,0,\n12,1,0\n",
}


@pytest.mark.parametrize("name", formats())
@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_every_format_is_recognised_by_its_columns(tmp_path: Path, name: str, packed: bool) -> None:
    path = tmp_path / "trace.data"
    content = SAMPLES[name].encode()
    path.write_bytes(gzip.compress(content) if packed else content)
    assert named(str(path)) == named(f"{name}:{path}")
    assert named(f"file:{path}")


@pytest.mark.parametrize("name", formats())
def test_every_format_can_be_parquet(tmp_path: Path, name: str) -> None:
    text = write(tmp_path / "trace.csv", SAMPLES[name])
    table = arrow_csv.read_csv(io.BytesIO(SAMPLES[name].encode()))
    parquet.write_table(table, tmp_path / "trace.parquet")
    assert named(str(tmp_path / "trace.parquet")) == named(str(text))


def test_own_columns(tmp_path: Path) -> None:
    assert named(str(write(tmp_path / "t.csv", SAMPLES["arrivals"]))) == [
        {
            "at_s": 0.5,
            "tenant": "a",
            "model": "x",
            "input_size": 3,
            "output_size": 7,
            "deadline_s": 1.5,
            "blocks": None,
        },
        {
            "at_s": 2.0,
            "tenant": "b",
            "model": "y",
            "input_size": 1,
            "output_size": 0,
            "deadline_s": None,
            "blocks": None,
        },
    ]


def test_most_own_columns_are_optional(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "model,at_s\nx,1\n")
    [row] = named(f"{path},tenant=team")
    assert row == {
        "at_s": 1.0,
        "tenant": "team",
        "model": "x",
        "input_size": 1,
        "output_size": 0,
        "deadline_s": None,
        "blocks": None,
    }


def test_mooncake_has_the_blocks_of_prompts(tmp_path: Path) -> None:
    found = named(f"{write(tmp_path / 't.csv', SAMPLES['mooncake'])},model=chat")
    assert column(found, "at_s") == [0.0, 1.5]
    assert column(found, "input_size") == [600, 1100]
    assert column(found, "output_size") == [5, 7]
    assert column(found, "blocks") == [[0, 1], [0, 1, 9]]


def test_azure_llm_times_start_at_the_first_row(tmp_path: Path) -> None:
    found = named(f"{write(tmp_path / 't.csv', SAMPLES['azure-llm'])},model=code")
    assert column(found, "at_s") == pytest.approx([0.0, 0.052])
    assert column(found, "input_size") == [4808, 3180]
    assert column(found, "output_size") == [10, 8]
    assert column(found, "model") == ["code", "code"]


def test_azure_llm_2024_has_zones_and_rows_slightly_out_of_order(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2024-05-10 00:00:01.500000+00:00,1,1\n2024-05-10 00:00:01+00:00,2,1\n",
    )
    found = named(str(path))
    assert column(found, "at_s") == [0.0, 0.5]
    assert column(found, "input_size") == [2, 1]


def test_azure_2021_calls_arrive_at_their_start(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.csv",
        "app,func,end_timestamp,duration\na,f,900.0,2\nb,g,1000,999.5\nb,g,1001,1\nc,h,3,4\n",
    )
    found = named(str(path))
    assert column(found, "at_s") == [0.0, 0.5, 898.0, 1000.0]
    assert [(row["tenant"], row["model"]) for row in found[:2]] == [("c", "h"), ("b", "g")]


def test_azure_2019_days_are_consecutive(tmp_path: Path) -> None:
    for day in (1, 2, 10):
        write(tmp_path / f"d{day}.csv", SAMPLES["azure-functions-2019"])
    found = named(f"azure-functions-2019:{tmp_path}/d*.csv")
    minutes = [(int(row["at_s"] // 60), row["tenant"], row["model"]) for row in found]
    one = [(0, "o2", "f2"), (1, "o1", "f1"), (1, "o1", "f1"), (2, "o1", "f1")]
    assert minutes == [(m + day * 1440, o, f) for day in range(3) for m, o, f in one]


def test_per_minute_counts_without_a_model_are_for_unknown(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", SAMPLES["gentd26-per-minute"])
    found = named(f"{path},within=gamma,cv=2")
    minutes = sorted((int(row["at_s"] // 60), row["model"]) for row in found)
    assert minutes == [(3, "M0"), (5, "M1"), (5, "unknown"), (5, "unknown")]


def test_huawei_2023_has_days_and_seconds(tmp_path: Path) -> None:
    for day in (0, 1):
        start = day * 86_400
        text = f"day,time,0,1\n{day},{start},1.0,\n{day},{start + 60},0,2\n"
        write(tmp_path / f"day_{day:03}.csv", text)
    found = named(f"huawei:{tmp_path}/day_*.csv")
    minutes = [(int(row["at_s"] // 60), row["model"]) for row in found]
    assert minutes == [(0, "0"), (1, "1"), (1, "1"), (1440, "0"), (1441, "1"), (1441, "1")]


def test_a_long_file_is_read_in_flat_memory(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    with path.open("w") as file:
        file.write("at_s,model,note\n")
        file.writelines(f"{index / 8},m{index % 9},{'x' * 90}\n" for index in range(200_000))
    before = pa.total_allocated_bytes()
    peak, count = 0, 0
    for batch in open_trace(str(path), seed=1):
        peak = max(peak, pa.total_allocated_bytes() - before)
        count += batch.num_rows
    assert count == 200_000
    assert peak < path.stat().st_size / 2


def test_the_first_batch_is_available_before_the_end_is_read(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    with path.open("w") as file:
        file.write("at_s,model,note\n")
        file.writelines(f"{index / 8},m,{'x' * 90}\n" for index in range(120_000))
        file.write("late,m,\n")
    assert times_s(next(iter(open_trace(str(path), seed=1))))[0] == 0.0
