"""tools/host_times.py: times of the host are renewed, and nothing else of a record."""

import json

import pytest

from cookbook.measure import records
from tools import host_times
from tools.records import device_code

NAME = "hopper/tma_wgmma_gemm"


@pytest.fixture
def record():
    figures = {"median_ms": 0.1, "host_us": 5.0, "host_new_us": 6.0, "rounds": 7}
    peers = {"torch.matmul": {"median_ms": 0.2, "host_us": 9.0}, "quack": {"median_ms": 0.3, "host_us": 7.0}}
    return {
        "level": "timed", "device": "NVIDIA H200", "recipe": NAME, "dtype": "bfloat16", "shape": [512, 512, 512],
        "figures": figures, "peers": peers, "host": "of code that has changed since", "date": "2026-11-23 10:00",
    }  # fmt: skip


def test_a_record_keeps_what_is_not_of_the_host(record):
    before = json.dumps(record)
    costs = {"ours": {"host_us": 4.0, "host_new_us": 4.5}, "torch.matmul": {"host_us": 8.0, "host_new_us": 8.5}}
    (new,) = host_times.renewed([record], costs)
    assert new["figures"] == {"median_ms": 0.1, "rounds": 7, "host_us": 4.0, "host_new_us": 4.5}
    assert new["peers"]["torch.matmul"] == {"median_ms": 0.2, "host_us": 8.0, "host_new_us": 8.5}
    assert new["peers"]["quack"] == {"median_ms": 0.3}, "a time that was not measured again goes"
    assert new["host"] == device_code.host_hash(NAME)
    assert new["date"] == record["date"]
    assert not records.host_is_stale(new)
    assert json.dumps(record) == before


def test_stale_ones_are_found_by_recipe_dtype_and_majors(record, monkeypatch):
    current = record | {"host": device_code.host_hash(NAME), "shape": [256, 256, 256]}
    elsewhere = record | {"device": "NVIDIA H100"}
    other = record | {"recipe": "hopper/first_gemm", "dtype": "float16"}
    monkeypatch.setattr(records, "read", lambda: [record, current, elsewhere, other])
    assert host_times.stale("NVIDIA H200", []) == {
        (NAME, "bfloat16", "tn"): [record],
        ("hopper/first_gemm", "float16", "tn"): [other],
    }
    assert list(host_times.stale("NVIDIA H200", [NAME])) == [(NAME, "bfloat16", "tn")]
