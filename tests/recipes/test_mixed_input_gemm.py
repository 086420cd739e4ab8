"""The mixed-input GEMM where there is no GPU: packing, conversion, planted faults, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cutlass
import numpy as np
import pytest
import torch
from edits import In
from mutations import Mutation, mutant
from planted import Suite, check_caught
from pretend import pretended

from cookbook.check import packed
from cookbook.check import product as followed
from cookbook.check.compiled import compile_recipe
from cookbook.check.pipeline import Run
from cookbook.check.product import words
from cookbook.check.product.follower import Fault
from cookbook.layouts import evaluate, tile_coords
from cookbook.recipe import catalog

NAME = "hopper/mixed_input_gemm"
MODULE = catalog.load(NAME)
KINDS = (packed.Kind(), packed.Kind(zeros=True), packed.Kind(8), packed.Kind(8, floats=True))


def weight(n: int = 128, k: int = 256):
    return torch.randint(0, 16, (n, k), dtype=torch.uint8), torch.rand(n, k // 128).bfloat16()


@pytest.mark.parametrize(("bits", "kind"), [(4, torch.uint8), (8, torch.int8), (8, torch.float8_e4m3fn)])
def test_pack_puts_each_element_where_wgmma_wants_it(bits, kind):
    """By the PTX ISA: lane l has rows l / 4 and that plus 8, columns 2 (l mod 4), the next one, and both plus 8."""
    n, k = 64, 128
    x = torch.randint(0, 127 if kind.is_floating_point else 1 << bits, (n, k), dtype=torch.uint8)
    words = (
        MODULE.pack(x.view(kind), torch.ones(n, 1).bfloat16()).weight.view(torch.int32).view(-1, 128, 4)
    )  # chunk, thread, word
    for thread in (0, 5, 37, 127):
        for step in range(8):
            row, column = 16 * (thread // 32) + thread % 32 // 4, 16 * step + 2 * (thread % 4)
            for register in range(4):
                for second in range(2):
                    if bits == 4:
                        word, shift = step, 4 * register
                    else:
                        word, shift = 2 * step + register // 2, 8 * (register % 2)
                    got = int(words[word // 4, thread, word % 4]) >> (shift + 16 * second) & (1 << bits) - 1
                    wanted = x[row + 8 * (register % 2), column + 8 * (register // 2) + second]
                    assert got == int(wanted) & (1 << bits) - 1


def test_the_picture_of_registers_is_cutes(monkeypatch):
    page = catalog.load("hopper/packed_weights")
    fields, by_blocks = page.fields, page.by_blocks
    coords = tile_coords(evaluate(MODULE.tiled_mma, cutlass.BFloat16, MODULE.Config(64)).a, (64, 16))
    for thread, values in enumerate(coords.tolist()):
        assert [(16 * (thread // 32) + row, k) for row, k in page.held(thread % 32)] == [tuple(at) for at in values]
    assert all(holds for _, holds, _ in page.facts())
    monkeypatch.setattr(page, "fields", lambda x, bits: fields(x.roll(8, 1), bits))
    monkeypatch.setattr(page, "by_blocks", lambda x: by_blocks(x.roll(1, 0)))
    assert [name for name, holds, _ in page.facts() if not holds] == ["words", "scales"]


def test_quantizing_what_is_rounded_loses_nothing_by_any_kind():
    x = packed.rounded(torch.randn(64, 256).bfloat16())
    for kind in KINDS:
        q, scales, *others = packed.quantized(x, kind)
        middle = others[0].float().repeat_interleave(128, 1) if kind.zeros else 8.0 if kind.bits == 4 else 0.0
        assert torch.equal((q.float() - middle) * scales.float().repeat_interleave(128, 1), x.float())


REFUSED = {
    "N": (lambda q, s: (q[:100], s[:100]), "weight: got N = 100; needed a multiple of 64"),
    "K": (lambda q, s: (q[:, :100], s), "weight: got K = 100; needed a multiple of 128"),
    "a value": (lambda q, s: (q + 10, s), "needed 0 to 15"),
    "scales": (lambda q, s: (q, s[:, :1][:64]), r"scales: got shape \(64, 1\)"),
    "dtype of scales": (lambda q, s: (q, s.float()), "scales: got torch.float32"),
    "zero points of int8": (lambda q, s: (q.to(torch.int8), s, q[:, :2]), "zeros: got Tensor; needed None"),
    "zero points of e4m3": (lambda q, s: (q.to(torch.float8_e4m3fn), s, q[:, :2]), "zeros: got Tensor; needed None"),
    "NaN": (
        lambda q, s: ((q.float() / 0 - q.float() / 0).to(torch.float8_e4m3fn), s),
        "weight: got NaN; needed numbers",
    ),
    "e5m2": (lambda q, s: (q.to(torch.float8_e5m2), s), "weight: got torch.float8_e5m2"),
    "shape of zero points": (lambda q, s: (q, s, q[:, :1]), r"zeros: got shape \(128, 1\)"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_pack_refuses(what):
    change, said = REFUSED[what]
    with pytest.raises((TypeError, ValueError), match=said):
        MODULE.pack(*change(*weight()))


def test_a_tile_of_one_register_set_or_whole_k_is_refused():
    with pytest.raises(ValueError, match="tile_k: got 128; needed a multiple of 256: an even number of groups"):
        replace(MODULE.CONFIG, tile_k=128)
    with pytest.raises(ValueError, match="split_k: got 1; needed 2 or more"):
        replace(MODULE.CONFIG, split_k=1)


def test_heuristic_takes_the_narrowest_tile_that_holds_the_rows():
    chosen = [MODULE.VARIANTS[MODULE.choose(m, 8192, 8192, 132)].tile_n for m in (1, 8, 9, 16, 17, 33, 64, 500)]
    assert chosen == [8, 8, 16, 16, 32, 64, 64, 64]


def test_two_e4m3_take_one_multiplication():
    """Subnormals are kept: PTX ISA, mul of bf16x2 and f16x2 without `.ftz`."""
    for dtype, short in (("bfloat16", "bf16x2"), ("float16", "f16x2")):
        config = MODULE.VARIANTS["128x16 in 2, e4m3"]
        built = compile_recipe(NAME, "sm_90a", dtype, config=config)
        pairs = 2 * config.tile_k // 128 * 32
        assert built.ptx.count(f"mul.{short}") + built.ptx.count(f"mul.rn.{short}") == pairs
        assert built.count("HMUL2") == pairs and built.spills == 0


def test_two_elements_take_one_lop3_and_one_subtraction():
    built = compile_recipe(NAME, "sm_90a", "bfloat16", config=MODULE.CONFIG)
    pairs = 2 * MODULE.CONFIG.tile_k // 128 * 32  # the first stage, and the loop's; of a group 32 pairs
    assert built.count("HADD2.BF16_V2") == pairs and pairs <= built.count("LOP3") <= pairs + 32
    assert built.spills == 0


FAULTS = {
    "another mask": In("convert").replace("cutlass.Uint32(0x000F000F)", "cutlass.Uint32(0x00070007)"),
    "another shift": In("convert").replace("4 * _i", "4 * (_i ^ 1)"),
    "another zero point": In().replace("MIDDLE = 8", "MIDDLE = 7"),
    "the scales of the other row": In("promote").replace("_rScale[_row].to", "_rScale[1 - _row].to"),
    "the scales of the group before": In("consume_stage").replace("1 - _now", "_now"),
    "the same half of a group twice": In("issue_wgmmas").replace("_steps * _group + _k", "_k"),
}


OF_E4M3 = {
    "the sign of the other byte": In("e4m3_to_floats").replace(
        "(_word, _word >> 8 - _places)", "(_word << 8, _word >> 8 - _places)"
    ),
    "a place too far": In("e4m3_to_floats").replace(
        "(_word << 8, _word << _places)", "(_word << 8, _word << _places + 1)"
    ),
    "half of the unit": In().replace("(4, 0x7B807B80)", "(4, 0x7B007B00)"),
    "no sign": In("e4m3_to_floats").replace("cutlass.Uint32(0x80008000)", "cutlass.Uint32(0)"),
}


SUITES = [
    Suite(("product",), [Mutation(NAME, what, change, "64x8 in 2") for what, change in FAULTS.items()]),
    Suite(("product",), [Mutation(NAME, what, change, "128x16 in 2, e4m3") for what, change in OF_E4M3.items()]),
]


@pytest.mark.parametrize(
    ("suite", "fault"), [(s, f) for s in SUITES for f in s.faults], ids=lambda x: getattr(x, "what", "")
)
def test_planted_fault_is_found(suite: Suite, fault: Mutation, tmp_path: Path) -> None:
    check_caught(fault, suite, tmp_path)


OF_E4M3_IN_FLOAT16 = {
    "nothing": None,
    "the places of bfloat16": In().replace("(7, 0x5C005C00)", "(4, 0x5C005C00)"),
    "half of the unit": In().replace("(7, 0x5C005C00)", "(7, 0x58005800)"),
}


@pytest.mark.parametrize("what", OF_E4M3_IN_FLOAT16)
def test_level_product_follows_e4m3_into_float16(what, tmp_path):
    edit = OF_E4M3_IN_FLOAT16[what]
    module = mutant(Mutation(NAME, what, edit), tmp_path) if edit else MODULE
    config = module.VARIANTS["128x16 in 2, e4m3"]
    found = followed.computed(Run(module, "sm_90a", cutlass.Float16, config, catalog.find(NAME).product), every=False)
    assert [one.ok for one in found] == [what == "nothing"]
    assert what == "nothing" or "a converted element: got" in found[0].faults[0]


@pytest.mark.parametrize(("dtype", "places", "unit"), [("bf16", 4, 0x7B80), ("f16", 7, 0x5C00)])
def test_all_bytes_of_e4m3_are_tried_where_they_become_floats(dtype, places, unit):
    """A bit of the factors is 0, 1, or one of the element, from 2 on. Without any one of them some byte is wrong."""
    of = words.Words(np.zeros(0), 8, zeros=False, floats=True, group=128)
    right = np.array([0] * 16 + [unit >> bit & 1 for bit in range(16)])
    right[[15, *range(places, places + 7)]] = [2 + 7, *range(2, 2 + 7)]
    words._check(right, of, dtype, times=True)
    for bit in np.flatnonzero(right):
        with pytest.raises(Fault, match="a converted element: got"):
            words._check(np.where(np.arange(32) == bit, 0, right), of, dtype, times=True)


def test_a_weight_of_e4m3_does_not_take_the_kernel_of_int8(monkeypatch):
    """Their packed weights differ in the dtype alone: the plan of one must not serve the other."""
    module, a = pretended(NAME, monkeypatch), torch.zeros(16, 512).bfloat16()
    scales = torch.ones(128, 1).bfloat16()
    of = {x: module.pack(torch.zeros(128, 512, dtype=x), scales) for x in (torch.int8, torch.float8_e4m3fn)}
    for x in (torch.int8, torch.float8_e4m3fn, torch.int8):
        module.matmul(a, *of[x])
    assert [(which[2].bits, which[2].floats) for which, _ in module.launched] == [(8, False), (8, True), (8, False)]
    assert len(module.GEMM.plans) == 2


@pytest.mark.parametrize("m", [1, *(pytest.param(m, marks=pytest.mark.slow) for m in (16, 32, 64))])
def test_e4m3_in_the_sizes_that_auto_gives_it(m):
    """VARIANTS names one tile of e4m3 alone, so the levels see that one; `matmul` gives e4m3 any tile."""
    config = replace(MODULE.VARIANTS[MODULE.choose(m, 8192, 8192, 132)], bits=8, floats=True)
    assert config.stages > 2 and compile_recipe(NAME, "sm_90a", "bfloat16", config=config).spills == 0
    found = followed.computed(Run(MODULE, "sm_90a", cutlass.BFloat16, config, catalog.find(NAME).product), every=False)
    assert [one.faults for one in found] == [()]
