"""A weight as the tensor core's A, split-K with DSMEM reduction buffers; and faults that must be found."""

from __future__ import annotations

import dataclasses
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pytest

cutlass = pytest.importorskip("cutlass")
torch = pytest.importorskip("torch")

from edits import In  # noqa: E402
from mutations import Mutation  # noqa: E402
from planted import Suite, check_caught  # noqa: E402
from walked import failures, integers, rounded, with_changes  # noqa: E402

from cookbook.check import compiled, tensor_memory  # noqa: E402
from cookbook.check.evaluated import evaluated  # noqa: E402
from cookbook.check.layout import check_layouts  # noqa: E402
from cookbook.check.model.product import simulate, simulate_evaluated  # noqa: E402
from cookbook.check.reduction_buffer import reduction_buffer_findings  # noqa: E402
from cookbook.layouts import Layout  # noqa: E402
from cookbook.recipe import catalog  # noqa: E402

NAME = "blackwell/low_latency_gemm"
BF16 = cutlass.BFloat16
configured = partial(with_changes, NAME)


@pytest.mark.parametrize(("tile_n", "split_k"), list(product((8, 16, 32, 64), (1, 2, 4, 8))))
def test_every_width_and_division_of_k(tile_n, split_k):
    """Layouts; the product with fewer k-tiles than CTAs, as many, and more; and more rows than one tile."""
    module, config = configured(tile_n=tile_n, split_k=split_k)
    assert not failures(check_layouts(module, BF16, config))
    assert config.smem_bytes <= 227 * 1024 and config.stages >= 8
    for m, n, k in ((5, 200, 64), (tile_n + 1, 40, 64 * split_k), (3, 130, 1000)):
        a, b = integers(m, n, k)
        assert np.array_equal(simulate(module, a, b, BF16, config), rounded(a @ b))


@pytest.mark.parametrize(("tile_n", "split_k", "early"), [(8, 2, False), (32, 4, True), (64, 1, False), (64, 8, True)])
def test_other_sizes_compile_and_say_what_the_layouts_need(tile_n, split_k, early):
    module, config = configured(tile_n=tile_n, split_k=split_k, early=early)
    built = compiled.compile_recipe(NAME, "sm_103a", "float16", config=config)
    found = evaluated(module, cutlass.Float16, config)
    assert not failures(tensor_memory.compiled_findings(found, built, "float16"))
    assert built.spills == 0 and built.registers <= 255
    vectors = max(1, config.share // 4) * (split_k if split_k > 1 else 0)
    assert built.count("STAS") == vectors and built.count("STG.E.U16") == config.share
    assert built.count("ACQBULK") == (2 if early else 3)  # each of the others waits for the kernel before
    assert built.ptx.count("st.async") == vectors


def test_what_is_sent_to_another_place_is_caught():
    """Senders that share places, or vectors that overlap: a finding, and a wrong or a refused product."""
    module, config = configured()
    right = evaluated(module, BF16, config)
    shape = right.reduction_buffer.shape
    a, b = integers(16, 128, 512)
    for stride in ((4, (1, 512), 0), (2, (1, 512), 512), (4, (1, 512), 256)):
        wrong = dataclasses.replace(right, reduction_buffer=Layout(shape, stride))
        assert "reduction_buffer.bijective" in failures(reduction_buffer_findings(wrong, config))
        try:
            got = simulate_evaluated(wrong, wrong, b.T, a.T, "bfloat16", config).T
        except ValueError as refused:
            assert "needed" in str(refused)
        else:
            assert (got != rounded(a @ b)).mean() > 0.25
    assert not failures(reduction_buffer_findings(right, config))


def test_conflicts_in_a_reduction_buffer_are_findings():
    """Threads 16 sums apart: one thread after the other writes to the same banks."""
    module, config = configured()
    found = evaluated(module, BF16, config)
    spread = dataclasses.replace(found, reduction_buffer=Layout(found.reduction_buffer.shape, (16, (1, 4), 4)))
    assert set(failures(reduction_buffer_findings(spread, config))) == {"reduction_buffer.wavefronts"}


@pytest.mark.parametrize(
    ("m", "n", "sms", "sizes"),
    [(1, 4096, 148, (8, 4)), (9, 4096, 148, (16, 4)), (64, 8192, 148, (64, 2)), (16, 28672, 148, (16, 1)),
     (300, 4096, 148, (64, 1)), (8, 4096, 100, (8, 2))],
)  # fmt: skip
def test_sizes_for_a_product(m, n, sms, sizes):
    """(tile_n, split_k): never more CTAs than SMs by dividing K."""
    module = catalog.load(NAME)
    for variant, most in (("whole K", 1), ("split K", 4), ("early weight", 4)):
        config = module.config_of(variant, m, n, sms)
        assert (config.tile_n, config.split_k) == (sizes[0], min(sizes[1], most))
        assert config.early == (variant == "early weight")


FAULTS = [
    ("split K", "one of two loads makes a stage full",
     In("make_pipelines").replace("(pipeline.CooperativeGroup(...) for _n in (1, 2, EPILOGUE_WARPS))",
      "(pipeline.CooperativeGroup(...) for _n in (1, 1, EPILOGUE_WARPS))")),
    ("split K", "sums are sent to CTAs that may not have begun", In("exchanged").drop("cute.arch.cluster_wait()")),
    ("split K", "the reduction buffer is read before it is full",
     In("exchanged").drop("cute.arch.mbarrier_wait(_arrived, 0)")),
    ("split K", "half of the bytes of the reduction are expected",
     In("begin").replace("_config.tile_m * _config.tile_n * 4", "_config.tile_m * _config.tile_n * 2")),
    ("split K", "all senders write to one place", In("exchanged").replace("_part.rank", "0")),
    ("whole K", "the weight is loaded too early", In("kernel").replace("'tma_a' not in at_rest(_config)", "False")),
    ("early weight", "what is multiplied is loaded too early",
     In("kernel").replace("'tma_b' not in at_rest(_config)", "False")),
    ("early weight", "C is stored too early", In("store_share").drop("cute.arch.griddepcontrol_wait()")),
    ("whole K", "tensor memory is freed too early", In("store").drop("_barrier.arrive_and_wait()")),
    ("whole K", "the registers are used before they are there",
     In("store_share").drop("cute.arch.fence_view_async_tmem_load()")),
]  # fmt: skip


SUITES = [Suite(("pipeline",), [Mutation(NAME, *change, variant) for variant, *change in FAULTS])]


@pytest.mark.parametrize("fault", SUITES[0].faults, ids=str)
def test_planted_pipeline_fault_is_found(fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, SUITES[0], tmp_path)
