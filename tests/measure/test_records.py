"""Records: one file a recipe and device, one record a key, stale as soon as the code is another."""

from __future__ import annotations

import json

import pytest

from cookbook.measure import records
from cookbook.recipe import catalog
from tools.records import device_code, suites

NAME = "ampere/ldmatrix_gemm"


def record(shape=(64, 64, 64), dtype="bfloat16", level="timed", device="NVIDIA Test 1", **figures):
    return records.make(level, NAME, dtype, shape, passed=True, figures=figures, device=device)


def test_slug():
    assert records.slug("NVIDIA H200") == "nvidia-h200"
    assert records.slug("NVIDIA GeForce RTX 4090 (24 GB)") == "nvidia-geforce-rtx-4090-24-gb"


def test_a_record_says_when_and_with_what():
    made = record(median_ms=1.5)
    assert made["code"] == records.code_of(NAME) and made["status"] == "passed"
    assert made["versions"]["torch"] and made["versions"]["nvidia-cutlass-dsl"]
    assert len(made["date"]) == len("2026-01-01 00:00") and made["figures"] == {"median_ms": 1.5}
    with pytest.raises(ValueError, match="level: got 'guessed'; needed one of ran, timed"):
        record(level="guessed")


def test_write_merges_by_key_and_reads_back(tmp_path):
    records.write([record(x=1), record((8, 8, 8), x=2), record(dtype="float16", x=3)], tmp_path)
    (file,) = records.write([record(x=4), record(None, level="ran", x=5)], tmp_path)
    assert file == tmp_path / "nvidia-test-1" / f"{NAME}.json"
    found = {records.key(r)[1:]: r["figures"]["x"] for r in records.read(tmp_path)}
    assert found == {
        ("timed", "bfloat16", (64, 64, 64)): 4,
        ("timed", "bfloat16", (8, 8, 8)): 2,
        ("timed", "float16", (64, 64, 64)): 3,
        ("ran", "bfloat16", ()): 5,
    }
    assert all(r["device"] == "NVIDIA Test 1" for r in records.read(tmp_path))


def test_majors_keep_records_apart(tmp_path):
    def of(majors, **figures):
        return records.make(
            "timed", NAME, "bfloat16", (8, 8, 8), passed=True, figures=figures, device="X", majors=majors
        )

    records.write([of(None, x=1), of("nt", x=2), of("nn", x=3)], tmp_path)
    records.write([of("nt", x=4)], tmp_path)
    found = {r.get("majors"): r["figures"]["x"] for r in records.read(tmp_path)}
    assert found == {None: 1, "nt": 4, "nn": 3}
    assert [r["figures"]["x"] for r in records.select(NAME, "timed", root=tmp_path, majors="nt")] == [4]


def test_devices_and_recipes_have_files_of_their_own(tmp_path):
    probe = record() | {"recipe": "probes/tma", "level": "probed"}
    files = records.write([record(), record(device="NVIDIA Test 2"), probe], tmp_path)
    names = ["nvidia-test-1/ampere/ldmatrix_gemm", "nvidia-test-1/probes/tma", "nvidia-test-2/ampere/ldmatrix_gemm"]
    assert sorted(str(file.relative_to(tmp_path))[: -len(".json")] for file in files) == names
    assert len(records.select(NAME, "timed", "bfloat16", tmp_path)) == 2
    assert records.select(NAME, "timed", "float16", tmp_path) == []


def test_the_first_gpu_is_the_one_with_most_recipes(tmp_path):
    others = [record(shape, device="A GPU", x=1) for shape in ((8, 8, 8), (16, 8, 8), (32, 8, 8))]  # of one recipe
    probe = record(device="Z GPU") | {"recipe": "probes/tma", "level": "probed"}
    records.write([*others, record(device="Z GPU", x=2), record((8, 8, 8), device="B GPU", x=3), probe], tmp_path)
    found = records.select(NAME, "timed", root=tmp_path)
    assert [r["device"] for r in found] == ["Z GPU", *["A GPU"] * 3, "B GPU"]
    grouped = records.by_gpu(reversed(found), tmp_path)
    assert list(grouped) == ["Z GPU", "A GPU", "B GPU"] and len(grouped["A GPU"]) == 3
    assert [file.parts[-3] for file in records.files(f"{NAME}.json", tmp_path)] == ["z-gpu", "a-gpu", "b-gpu"]


def test_of_one_gpu_gives_current_records_of_one_gpu_alone(tmp_path):
    probe = record(device="Z GPU") | {"recipe": "probes/tma", "level": "probed"}
    stale = record(device="Z GPU", x=1) | {"code": "0" * 64}
    records.write([stale, probe, *(record((n, 8, 8), device=d, x=n) for n in (8, 16) for d in ("A", "B"))], tmp_path)

    def found(device=None):
        return [
            (r["device"], r["figures"]["x"]) for r in records.of_one_gpu(NAME, "timed", None, tmp_path, None, device)
        ]

    assert found() == [("A", 8), ("A", 16)]  # all of the first GPU's are stale
    assert found("B") == [("B", 8), ("B", 16)] and found("Z GPU") == []
    records.write([record(device="Z GPU", x=5)], tmp_path)
    assert found() == [("Z GPU", 5)]


def test_the_file_does_not_depend_on_the_order_of_writing(tmp_path):
    a, b = record((8, 8, 8)), record((16, 8, 8))
    first = records.write([a, b], tmp_path / "1")[0].read_text()
    records.write([b], tmp_path / "2")
    assert records.write([a], tmp_path / "2")[0].read_text() == first


def test_what_was_not_measured_anew_keeps_its_lines(tmp_path):
    """A diff shows the new record alone, whatever the order of its fields."""
    (file,) = records.write([record((8, 8, 8), x=1, y=[1, 2]), record((16, 8, 8), x=2)], tmp_path)
    before = file.read_text().splitlines()
    again = record((16, 8, 8), x=3)
    records.write([dict(reversed(again.items()))], tmp_path)
    after = file.read_text().splitlines()
    assert [line for line in before if line not in after] == ['   "figures": {"x": 2},']
    assert [line for line in after if line not in before] == ['   "figures": {"x": 3},']


def test_a_kernel_stands_once_in_a_file(tmp_path):
    kernels = [{"recipe": NAME, "target": "sm_80", "vec": vec, "ptx": "a", "launch": "b"} for vec in (8, 4)]
    made = [record((n, 8, 8)) | {"kernels": kernels[:n]} for n in (1, 2)]
    (file,) = records.write(made, tmp_path)
    assert file.read_text().count('"vec": 8') == 1 and records.read(tmp_path) == made


def test_times_of_the_host_have_a_hash_of_their_own(tmp_path):
    made = record(median_ms=1.0, host_us=2.0, host_new_us=3.0) | {"peers": {"torch.matmul": {"host_us": 4.0}}}
    assert made["host"] == device_code.host_hash(NAME) and not records.host_is_stale(made)
    assert records.figures_of(made) == made["figures"] | {"peers": made["peers"]}
    old = made | {"host": "0"}
    assert records.host_is_stale(old) and not records.is_stale(old)
    said = records.figures_of(old)
    assert said == {"median_ms": 1.0, "peers": {"torch.matmul": {}}, "host": "the host's code has changed since"}
    assert not records.host_is_stale(record(median_ms=1.0)) and "host" not in record(median_ms=1.0)


def test_stale_as_soon_as_the_code_changes(tmp_path):
    fresh, old, gone = record((8, 8, 8)), record((16, 8, 8)), record((24, 8, 8))
    old["code"] = "0" * 64
    gone["recipe"] = "ampere/gone"
    records.write([fresh, old, gone], tmp_path)
    assert [r["shape"][0] for r in records.stale(root=tmp_path)] == [24, 16]
    assert [r["shape"][0] for r in records.stale(NAME, tmp_path)] == [16]
    assert not records.is_stale(fresh)


def test_a_file_that_is_no_records_is_named(tmp_path):
    file = tmp_path / "nvidia-test-1" / "ampere" / "x.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"records": []}))
    with pytest.raises(ValueError, match=r"x\.json: not a file of records"):
        records.read(tmp_path)


def test_every_record_can_be_read_and_says_its_device():
    known = {r.name for r in catalog.recipes()} | set(suites.SUITES)
    for found in records.read():
        assert found["level"] in records.KNOWN and found["device"] and found["date"] and found["versions"]
        assert found["recipe"] in known and len(found["code"]) == 64 and found["target"] == "sm_90a"
        assert all(kernel["ptx"] and kernel["launch"] for kernel in found["kernels"]), found["recipe"]


def test_files_are_as_they_are_written():
    for file in records.results_root().glob("*/*/*.json"):
        assert file.read_text() == records.as_text(records._read(file)), file


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("hopper/int8_gemm", "int8 of the full range"),
        ("hopper/fp8_gemm", "normal(0, 1)"),
        ("hopper/tuned_gemm", "normal(0, 1)"),
    ],
)
def test_a_record_says_what_the_inputs_were_drawn_from(recipe, said):
    assert records.drawn_from(recipe) == said
