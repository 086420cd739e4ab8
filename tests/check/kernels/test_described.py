"""Operands of tcgen05 by numbers that a kernel makes: what they name, and what is found of it."""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cutlass.experimental import primitives as prims

from cookbook.check.pipeline.regions import region, tensor_region
from cookbook.model.smem_descriptor import BLACKWELL_CODES, BlackwellDescriptor, operand_addresses
from cookbook.model.tcgen05 import InstructionDescriptor, d_places
from cookbook.simulate import described as numbers
from cookbook.simulate.values import CannotFollow, Pointer
from cookbook.testing import check

sys.path.insert(0, str(Path(__file__).parent))
import described

EVERYBODY = np.ones(32, bool)
CTA, CLUSTER = prims.MemScope.CTA, prims.MemScope.CLUSTER


@pytest.mark.parametrize("lanes", [True, False])
@pytest.mark.parametrize(
    "waits, scope, found", [(False, CLUSTER, {"race", "exit"}), (True, CTA, {"scope"}), (True, CLUSTER, set())]
)
def test_who_copies_for_both_ctas_waits_for_both(waits, scope, found, lanes):
    report = check(described.copied, "i16[256,2] column", waits, scope, lanes, arch="sm_100a")
    assert {one.rule for one in report.found} == found and not report.not_followed, str(report)
    told = [step.text for step in report.repairs]
    assert found != {"scope"} or (len(told) == 1 and told[0].endswith("have the scope `.cluster`")), told
    for one in report.found[:1]:
        assert "prims.tcgen05_cp(" in one.at.source and "prims.cp_async_bulk" in one.other.source


@pytest.mark.parametrize("later, found", [(True, set()), (False, {"proxy fence"})])
def test_what_cp_async_brings_is_read_with_no_fence_of_proxies(later, found):
    report = check(described.brought, "i8[512]", later, arch="sm_100a")
    assert {one.rule for one in report.found} - {"bank conflict"} == found and not report.not_followed, str(report)


@pytest.mark.parametrize(
    "stores, polls, found", [(True, True, set()), (False, True, {"race", "exit"}), (True, False, {"race"})]
)
def test_ptx_multiplies_what_others_wrote_to_tensor_memory(stores, polls, found):
    report = check(described.by_ptx, "f32[32]", stores, polls, arch="sm_100a")
    assert {one.rule for one in report.found} == found and not report.not_followed, str(report)


def test_a_branch_on_data_may_wait_for_its_own_stores():
    report = check(described.scaled, "f32[32]", True, False, arch="sm_100a")
    assert not report.found and not report.not_followed, str(report)
    report = check(described.scaled, "f32[32]", False, False, arch="sm_100a")
    assert "race" in {one.rule for one in report.found}, str(report)


def test_a_wait_for_earlier_stores_in_a_branch_on_data():
    """On the other side they would not be waited for."""
    (why,) = check(described.scaled, "f32[32]", True, True, arch="sm_100a").not_followed
    assert "a branch that depends on data holds nvvm.tcgen05.wait" in why.text


@pytest.mark.parametrize(
    "short, waits, found",
    [(0, True, set()), (512, True, {"race", "early arrival"}), (-512, True, {"deadlock"}), (0, False, {"race"})],
)
def test_rows_that_tma_gathers_are_counted_and_waited_for(short, waits, found):
    report = check(described.gathered, "f16[256,64]", "i32[32]", short, waits, arch="sm_100a")
    rules = {one.rule for one in report.found} - {"bank conflict", "exit"}
    assert rules == found and not report.not_followed, str(report)


# --- 64 bits -----------------------------------------------------------------------------------------------------

MAJORS = [(mode, "K", 8) for mode in BLACKWELL_CODES if mode[1] == 16]
MAJORS += [(mode, "MN", 32 if mode[1] == 32 else 16) for mode in BLACKWELL_CODES]


@pytest.mark.parametrize("mode, major, bits", MAJORS)
@pytest.mark.parametrize("rows", [8, 64, 128])
def test_a_descriptor_names_the_bytes_that_the_model_reads(mode, major, bits, rows):
    one = BlackwellDescriptor(4096, 8192, 1024, *mode)
    addresses = operand_addresses(one, rows, major, bits)
    each = 16 if major == "K" else bits // 8
    wanted = np.unique((addresses.ravel()[:, None] + np.arange(each)) // 4)
    found = numbers.operand(one.encode(), rows, major, bits)
    assert region(found, EVERYBODY) == sum(1 << int(granule) for granule in wanted)


def test_a_descriptor_that_is_not_modelled_is_not_followed():
    with pytest.raises(CannotFollow, match="base offset"):
        numbers.operand(BlackwellDescriptor(0, 16, 128, 0, base_offset=1).encode(), 8)
    with pytest.raises(ValueError, match="needed 0b001 in bits 46-48"):
        numbers.operand(1 << 15, 8)


@pytest.mark.parametrize("m, ctas", [(64, 1), (128, 1), (128, 2), (256, 2)])
@pytest.mark.parametrize("n", [32, 256])
def test_accumulators_lie_where_the_model_adds(m, ctas, n):
    word = InstructionDescriptor("f16", m, n, "float16", a_major="MN").encode()
    shape = numbers.Shape.of(word, "f16")
    assert shape == (m, n, ("MN", "K"), 16, False)
    cta, lane, column = (each.ravel() for each in d_places(m, n, ctas))
    wanted = set((lane * 512 + column)[cta == 0].tolist())
    found = tensor_region(numbers.accumulators(Pointer("tmem", 0), shape, ctas))
    assert {at for at in range(found.bit_length()) if found >> at & 1} == wanted


def test_what_is_not_certain_of_an_mma_is_not_followed():
    half = InstructionDescriptor("f16", 128, 64, "float16", d_type="float16").encode()
    for word, kind, why in ((half, "f16", "16 bits"), (1 << 2 | 1 << 4, "f16", "sparse"), (0, "f4", "kind f4")):
        with pytest.raises(CannotFollow, match=why):
            numbers.Shape.of(word, kind)


def asked(a, m: int, ctas: int, kind: str = "f16", scales=()):
    """What an MMA asks of who follows it."""
    seen = []
    f = SimpleNamespace(integer=lambda value, what: value, tensor_core=lambda *told: seen.append(told))
    word = InstructionDescriptor(kind, m, 64, "float16" if kind == "f16" else "e2m1").encode()
    b = BlackwellDescriptor(0, 16, 1024, 128).encode()
    numbers.multiply(f, None, kind, ctas, Pointer("tmem", 0), a, b, word, scales)
    return seen[0][1:]


def test_a_in_tensor_memory_takes_eight_columns():
    at = Pointer("tmem", 4 * 256)
    reads, taken, _, pair = asked(at, 256, 2)
    assert len(reads) == 1 and pair
    assert tensor_region(taken[0]) == sum(0xFF << 512 * lane + 256 for lane in range(128))
    with pytest.raises(CannotFollow, match="64 rows in a CTA"):
        asked(at, 128, 2)


@pytest.mark.parametrize("ctas, columns", [(1, (4, 2)), (2, (2, 1))])
def test_scale_factors_take_a_column_for_32_rows(ctas, columns):
    """Of B, too: 64 columns; with 64 rows in a CTA, lanes have half of them each."""
    scales = [Pointer("tmem", 4 * 100), Pointer("tmem", 4 * 200)]
    a = BlackwellDescriptor(0, 16, 1024, 128).encode()
    reads, taken, _, _ = asked(a, 128, ctas, "mxf4nvf4", scales)
    assert len(reads) == 2 and tuple(view.layout.shape for view in taken) == tuple((128, n) for n in columns)
    with pytest.raises(CannotFollow, match="0 tensors of scale factors"):
        asked(a, 128, ctas, "mxf4nvf4")


@pytest.mark.parametrize("shape, more", [("shape_4x256b", None), ("shape_128x256b", "b6x16_p32")])
def test_copies_that_are_not_certain_are_not_followed(shape, more):
    attributes = {"shape": shape, "srcFormat": more}
    with pytest.raises(CannotFollow, match="of shape"):
        numbers._copy(None, SimpleNamespace(attributes=attributes, get=attributes.get), [0, 0])


@pytest.mark.parametrize(("rows", "width"), product((32, 64, 128), (16,)))
def test_a_copy_reads_its_rows(rows, width):
    one = BlackwellDescriptor(512, 16, 128, 0).encode()
    assert region(numbers.operand(one, rows, width=width), EVERYBODY) == (1 << rows * width // 4) - 1 << 512 // 4
