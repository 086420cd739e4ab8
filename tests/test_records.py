"""Records: one file a device, one record a key, stale as soon as the code is another."""

from __future__ import annotations

import json

import pytest

from cookbook.harness import catalog, records, suites

NAME = "ampere/ldmatrix_gemm"


def record(shape=(64, 64, 64), dtype="bfloat16", level="timed", device="NVIDIA Test 1", **figures):
    return records.make(level, NAME, dtype, shape, passed=True, figures=figures, device=device)


def test_slug():
    assert records.slug("NVIDIA H200") == "nvidia-h200"
    assert records.slug("NVIDIA GeForce RTX 4090 (24 GB)") == "nvidia-geforce-rtx-4090-24-gb"


def test_a_record_says_when_and_with_what():
    made = record(median_ms=1.5)
    assert made["code_hash"] == catalog.code_hash(NAME) and made["status"] == "passed"
    assert made["versions"]["torch"] and made["versions"]["nvidia-cutlass-dsl"]
    assert len(made["date"]) == len("2026-01-01 00:00") and made["figures"] == {"median_ms": 1.5}
    with pytest.raises(ValueError, match="level: got 'guessed', needed one of ran, timed"):
        record(level="guessed")


def test_write_merges_by_key_and_reads_back(tmp_path):
    records.write([record(x=1), record((8, 8, 8), x=2), record(dtype="float16", x=3)], tmp_path)
    (file,) = records.write([record(x=4), record(None, level="ran", x=5)], tmp_path)
    assert file.name == "nvidia-test-1.json"
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


def test_devices_have_files_of_their_own(tmp_path):
    records.write([record(), record(device="NVIDIA Test 2")], tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["nvidia-test-1.json", "nvidia-test-2.json"]
    assert len(records.select(NAME, "timed", "bfloat16", tmp_path)) == 2
    assert records.select(NAME, "timed", "float16", tmp_path) == []


def test_the_file_does_not_depend_on_the_order_of_writing(tmp_path):
    a, b = record((8, 8, 8)), record((16, 8, 8))
    first = records.write([a, b], tmp_path / "1")[0].read_text()
    records.write([b], tmp_path / "2")
    assert records.write([a], tmp_path / "2")[0].read_text() == first


def test_stale_as_soon_as_the_code_changes(tmp_path):
    fresh, old, gone = record((8, 8, 8)), record((16, 8, 8)), record((24, 8, 8))
    old["code_hash"] = "0" * 64
    gone["recipe"] = "ampere/gone"
    records.write([fresh, old, gone], tmp_path)
    assert [r["shape"][0] for r in records.stale(root=tmp_path)] == [24, 16]
    assert [r["shape"][0] for r in records.stale(NAME, tmp_path)] == [16]
    assert not records.is_stale(fresh)


def test_a_file_that_is_no_records_is_named(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"records": []}))
    with pytest.raises(ValueError, match=r"x\.json: not a file of records"):
        records.read(tmp_path)


def test_every_record_in_the_repository_can_be_read_and_says_its_device():
    for found in records.read():
        assert found["level"] in records.KNOWN and found["device"] and found["date"] and found["versions"]
        assert found["recipe"] in {r.name for r in catalog.recipes()} | set(suites.SUITES)
