"""The mixed-input GEMM where there is no GPU: packing, conversion, planted faults, what is refused."""

from __future__ import annotations

import pytest
import torch
from mutations import Mutation
from planted import caught

from cookbook.check import packed
from cookbook.check.compiled import compile_recipe
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


def test_the_heuristic_takes_the_narrowest_tile_that_holds_the_rows():
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
    "another mask": ("cutlass.Uint32(0x000F000F)", "cutlass.Uint32(0x00070007)"),
    "another shift": ("rWords[step] >> (4 * i)", "rWords[step] >> (4 * (i ^ 1))"),
    "another zero point": ("MIDDLE = 8", "MIDDLE = 7"),
    "the scales of the other row": ("scale = rScale[row].to", "scale = rScale[1 - row].to"),
    "the scales of the group before": ("me.rScales[1 - now])", "me.rScales[now])"),
    "the same half of a group twice": ("steps * group + k, stage", "k, stage"),
}


OF_E4M3 = {
    "the sign of the other byte": ("sign, rest = word, word", "sign, rest = word << 8, word"),
    "a place too far": ("rest = word << 8, word << places", "rest = word << 8, word << places + 1"),
    "half of the unit": ("0x7B807B80", "0x7B007B00"),
    "no sign": ("0x80008000)) | (rest", "0x00000000)) | (rest"),
}


@pytest.mark.parametrize("what", [*FAULTS, *OF_E4M3])
def test_level_product_finds(what, tmp_path):
    before, after = (FAULTS | OF_E4M3)[what]
    variant = "64x8 in 2" if what in FAULTS else "128x16 in 2, e4m3"
    assert caught(Mutation(NAME, what, before, after, variant), ("product",), tmp_path).level == "product"
