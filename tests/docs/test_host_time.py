"""docs/host_time.md: its steps are those that are measured, its code compiles, its claims on the launch hold."""

from __future__ import annotations

import re

import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import pytest
import torch

from cookbook.measure import contest
from cookbook.recipe import catalog
from tools.ops import measuring, steps
from tools.publish import host_tables

PAGE = (catalog.recipes_root().parent / "docs" / "host_time.md").read_text(encoding="utf-8")


@cute.jit
def host(mA: cute.Tensor, mB: cute.Tensor, stream: cuda.CUstream):
    """No kernel, so that a machine without a GPU can call it."""


def test_a_signature_of_tensors_checks_what_it_is_given():
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    known = {"cute": cute, "cutlass": cutlass, "host": host}
    exec(block, known)
    x = torch.zeros(16, 32, dtype=torch.bfloat16)
    with pytest.raises(Exception, match=r"host\(mA: Tensor\(\[n0, n1\], bfloat16\).*expected device_type=cuda"):
        known["scale"](x, x)


def test_the_host_code_encodes_tensor_maps_without_the_driver():
    made = host_tables.launch()
    assert "cudaLaunchKernelEx" in made.asks_for
    assert not any("TensorMap" in name for name in made.asks_for)
    assert made.parameters == (128, 8, 128, 8, 24)
    assert "| together | 296 |" in host_tables.parameters()


MEASURED = {
    "ops.matmul": 7.5,
    "ops.matmul, without its launch": 4.0,
    "C made": 1.0,
    "addresses and stream": 0.5,
    "arguments handed over": 0.75,
    "arguments handed over, beneath the DSL's wrapper": 0.25,
    "an empty kernel": 2.5,
    "an empty kernel with two tensor maps": 3.0,
    "an empty kernel, by a signature of tensors": 3.5,
    "an empty kernel, until the host sees its end": 9.0,
    "three from_dlpack": 6.0,
}


def test_the_steps_add_up_to_a_call():
    costs = steps.costs(MEASURED)
    assert costs["the driver's launch"] == 1.75 and costs["two tensor maps"] == 0.5
    assert sum(costs.values()) == MEASURED["ops.matmul"]
    assert set(costs) == set(host_tables.STEPS)
    parts = {name for whole, less in steps.STEPS.values() for name in (whole, *less)}
    assert parts <= set(MEASURED)


@pytest.fixture
def recorded(tmp_path):
    us = {"ops.matmul": 7.5, "the launch alone": 3.4, "ops.matmul, replayed in a graph": 3.1}
    called = {"us": us, "steps": MEASURED, "host": measuring.host_code(), "date": "2026-11-23 12:00"}
    measuring.write("NVIDIA H200", called=called, root=tmp_path)
    return tmp_path


def test_what_the_page_shows_of_a_record(recorded):
    assert "is 7.5 on NVIDIA H200 (2026-11-23 12:00)." in host_tables.number(recorded)
    table = host_tables.step_table(recorded)
    assert "| 7. the driver's launch | CUDA driver | " in table and table.count("\n") == len(host_tables.STEPS) + 2
    assert re.search(r"8\. begins, ends, is seen .*\| 6\.50 \|", table)
    picture = host_tables.timeline(recorded)
    assert "NVIDIA H200" in picture and 'data-end="7.5"' in picture and "as long as each other" not in picture
    ways = host_tables.ways(recorded)
    assert "| replayed in a CUDA graph | 3.10 |" in ways and "| only handing the arguments over | 0.75 |" in ways


def test_a_record_without_steps_shows_what_it_has(tmp_path):
    us = {"ops.matmul": 7.5, "the launch alone": 3.5}
    measuring.write("NVIDIA H200", called={"us": us, "host": measuring.host_code(), "date": "today"}, root=tmp_path)
    assert "is 7.5 on NVIDIA H200 (today)." in host_tables.number(tmp_path)
    picture = host_tables.timeline(tmp_path)
    assert all(f'data-end="{end}"' in picture for end in ("4", "7.5")) and "4 to 7" in picture
    assert host_tables.step_table(tmp_path).endswith("The microseconds of each: *not measured*.")
    ways = host_tables.ways(tmp_path)
    assert "| `ops.matmul` | 7.50 |" in ways and "| only handing the arguments over | not measured |" in ways


def test_nothing_measured_and_older_code(tmp_path, recorded):
    empty = tmp_path / "none"
    assert "*not measured*" in host_tables.number(empty) and "as long as each other" in host_tables.timeline(empty)
    assert host_tables.step_table(empty).endswith("The microseconds of each: *not measured*.")
    measuring.write("NVIDIA H200", called={"us": {}, "steps": MEASURED, "host": "older", "date": ""}, root=recorded)
    assert "not measured since the code changed" in host_tables.number(recorded)


def test_the_ways_are_those_that_are_recorded():
    assert {way for part, way in host_tables.WAYS.values() if part == "steps"} <= set(MEASURED)


def test_host_functions_compile_and_the_empty_one_runs_here():
    compiled = steps.compile_all("sm_90a")
    assert set(compiled) == {*steps.FUNCTIONS, "of_tensors"}
    taken = steps.compile_host(steps.numbers, "", ((cutlass.BFloat16, 16),) * 3, (), "--enable-tvm-ffi")
    given = 16, 32, 48, (1, 2, 3), (8, 8, 8), 0
    assert taken(*given) is None and taken.__tvm_ffi_object__()(*given) is None
    with pytest.raises(ValueError, match="expected tuple size=3"):
        taken(16, 32, 48, (1, 2), (8, 8, 8), 0)


def test_each_way_is_called(monkeypatch):
    """With no GPU: launches are noted, the rest is real."""
    from without_gpu import normal, pretend

    from cookbook import ops
    from cookbook.ops import launching

    pretend(monkeypatch)
    noted, waited = [], []
    compiled = {
        name: lambda *given, name=name: noted.append((name, given)) for name in (*steps.FUNCTIONS, "of_tensors")
    }
    a, b = normal(64, 64), normal(64, 64).T
    ops.matmul(a, b)
    (plan,) = launching.PLANS.values()
    ways = steps.ways(a, b, compiled, lambda: waited.append(1))
    assert set(ways) == set(MEASURED)
    for name in ("an empty kernel", "an empty kernel with two tensor maps"):
        ways[name]()
        assert noted.pop()[1][3:] == ((64, 64, 64), (64, 64, 64), 7)
    ways["an empty kernel, until the host sees its end"]()
    assert len(waited) == 1
    taken = []
    real = plan._replace(launch=lambda *given: taken.append(given))
    launching.PLANS.update(dict.fromkeys(launching.PLANS, real))
    ways["ops.matmul"]()
    ways["ops.matmul, without its launch"]()
    assert len(taken) == 1 and list(launching.PLANS.values()) == [plan]
    monkeypatch.setattr(contest, "HOST_CALLS", 2)
    assert all(us > 0 for us in contest.us_per_call(ways, lambda: None).values())
