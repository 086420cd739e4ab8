"""hopper/tma_copy without a GPU: its layouts against the model of TMA, its machine code, its entry points' refusals.
And what hopper/tma_pitfalls says of such layouts, against the same model."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import product

import cutlass
import numpy as np
import pytest
import torch

from cookbook import model
from cookbook.check import compiled, poisoning
from cookbook.check import levels as checking
from cookbook.layouts import evaluate
from cookbook.measure import records, tma_copies
from cookbook.products import study
from cookbook.recipe import catalog
from cookbook.swizzle import Swizzle

NAME, PITFALLS = "hopper/tma_copy", "hopper/tma_pitfalls"
MODES, MAJORS = ("none", "sw32", "sw64", "sw128"), ("k", "mn")
TYPES = {1: cutlass.Uint8, 2: cutlass.Uint16, 4: cutlass.Uint32}
KERNELS = ("copy_kernel", "dump_kernel", "restore_kernel")
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@pytest.fixture(scope="module")
def module():
    return catalog.load(NAME)


def random_lines(shape, size):
    return np.random.default_rng(1).integers(0, 256, (shape[0], shape[1] * size), np.uint8).view(BITS[size])


# --- layouts against the model ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "major", "size"), list(product(MODES, MAJORS, TYPES)))
def test_the_layout_finds_every_element_that_tma_has_loaded(module, mode, major, size):
    for config in (replace(module.CONFIG, mode=mode, major=major), replace(module.LOOK, mode=mode, major=major)):
        layout = evaluate(module.smem_layout, TYPES[size], config)
        assert layout.is_bijective() and layout.size_bytes == config.stages * config.tile_bytes
        assert layout.swizzle in (Swizzle(module.MODES[mode], 4, 3), Swizzle(0, 4, 3))
        lines = random_lines((config.lines + 9, config.line_bytes // size + 32 // size), size)
        memory = tma_copies.expected(lines, config, (3, 16 // size)).view(BITS[size])
        places = layout.byte_offsets().reshape(*config.tile(8 * size), -1)[:, :, 0] // size
        read = memory[places if major == "k" else places.T]
        along = config.line_bytes // size
        assert (read == lines[3 : 3 + config.lines, 16 // size : 16 // size + along]).all()


@pytest.mark.parametrize("mode", MODES)
def test_another_mode_does_not_find_them(module, mode):
    lines = np.arange(16 * 64, dtype=np.uint16).reshape(16, 64)
    memory = tma_copies.expected(lines, replace(module.LOOK, mode=mode)).view(np.uint16)
    for other in MODES:
        read = memory[
            evaluate(module.smem_layout, cutlass.Uint16, replace(module.LOOK, mode=other)).byte_offsets() // 2
        ]
        share = (read.reshape(16, 64) == lines).mean()
        assert share == pytest.approx(catalog.load(PITFALLS).found(mode, other)) and (share == 1) == (mode == other)


@pytest.mark.parametrize(("mode", "base"), list(product(MODES, (0, 128, 256, 512, 640))))
def test_offset_is_the_models_wherever_the_tile_begins(module, mode, base):
    lines = np.arange(16 * 8, dtype=np.uint16).repeat(8).reshape(16, 64)  # the chunk's number
    memory = tma_copies.expected(lines, replace(module.LOOK, mode=mode), base=base).view(np.uint16)
    for line, chunk in product(range(16), range(8)):
        assert memory[module.offset(line, 16 * chunk, mode, base) // 2] == 8 * line + chunk


def test_the_late_tile_of_the_pitfalls_is_the_models(module):
    """Each chunk in the slot where TMA puts it, wherever the tile begins; and no smaller base is harmless."""
    pitfalls, lines = catalog.load(PITFALLS), np.arange(16 * 8, dtype=np.uint16).repeat(8).reshape(16, 64)
    for base in range(0, 1024, 128):
        chunks = tma_copies.expected(lines, module.LOOK, base=base).view(np.uint16)[::8].reshape(16, 8)
        for line in range(16):
            slots = pitfalls.slots("sw128", base, line)
            assert [chunks[line][slot] for slot in slots] == list(range(8 * line, 8 * line + 8))
    for mode in MODES:
        config, least = replace(module.LOOK, mode=mode), pitfalls.harmless_base(mode)
        same = [
            (tma_copies.expected(lines, config, base=b) == tma_copies.expected(lines, config)).all()
            for b in range(128, least + 1, 128)
        ]
        assert same == [False] * (len(same) - 1) + [True]


def test_the_pitfalls_hold_and_need_no_gpu():
    report = checking.check(PITFALLS)
    (layout,) = [level for level in report.levels if level.level == "layout"]
    assert report.ok and layout.status == "passed" and len(catalog.load(PITFALLS).facts()) == 4


def test_a_late_tile_and_a_shifted_swizzle_are_caught(module):
    lines = np.arange(16 * 64, dtype=np.uint16).reshape(16, 64)
    places = evaluate(module.smem_layout, cutlass.Uint16, module.LOOK)
    read = tma_copies.expected(lines, module.LOOK, base=128).view(np.uint16)[places.byte_offsets() // 2]
    assert (read.reshape(16, 64) == lines).mean() == 0  # every line is in the order of the next: no chunk at home
    unswizzled = tma_copies.expected(lines, module.LOOK).view(np.uint16)[places.outer.table()]
    assert (unswizzled.reshape(16, 64) == lines).mean() == 1 / 8  # lines 0 and 8 alone


@pytest.mark.parametrize(("mode", "size"), list(product(MODES, TYPES)))
def test_a_store_undoes_a_load_and_clips(module, mode, size):
    config = replace(module.LOOK, mode=mode)
    lines = random_lines((40, 144 // size), size)
    for corner in ((0, 0), (3, 16 // size), (30, 64 // size), (40, 0)):
        for base in (0, 128):
            memory = tma_copies.expected(lines, config, corner, base)
            out = np.zeros_like(lines)
            got = tma_copies.restored(memory, out, config, corner, base)
            inside = np.zeros(lines.shape, bool)
            inside[corner[0] : corner[0] + 16, corner[1] : corner[1] + 128 // size] = True
            assert (got == np.where(inside, lines, 0)).all() and not out.any()


def test_what_is_outside_comes_as_zeros(module):
    lines = np.full((5, 64), 7, np.uint16)
    memory = tma_copies.expected(lines, module.LOOK, (-3, -8)).view(np.uint16)
    read = memory[evaluate(module.smem_layout, cutlass.Uint16, module.LOOK).byte_offsets() // 2].reshape(16, 64)
    assert (read[3:8, 8:] == 7).all() and read.sum() == 7 * 5 * 56


def test_the_model_refuses_a_wider_box_and_a_skew_corner(module):
    lines = np.zeros((16, 128), np.uint16)
    with pytest.raises(ValueError, match="rows of 256 bytes; needed at most 128"):
        model.tma_load(model.SharedMemory(4096), 0, lines, (0, 0), (16, 128), 128)
    with pytest.raises(ValueError, match="column 4, byte 8"):
        tma_copies.expected(lines, module.LOOK, (0, 4))


# --- machine code -----------------------------------------------------------------------------------------------


def test_facts_and_machine_code(module):
    report = checking.check(NAME, targets=["sm_90a"])
    levels = {level.level: level for level in report.levels}
    assert report.ok and levels["layout"].status == levels["compiled"].status == "passed"


def boxes():
    """Each mode and major is quick once, with a size of elements that changes from one to the next."""
    for number, ((mode, major), size) in enumerate(product(product(MODES, MAJORS), TYPES)):
        yield pytest.param(mode, major, size, marks=pytest.mark.slow if number % 4 else ())


@pytest.mark.parametrize(("mode", "major", "size"), list(boxes()))
def test_an_instruction_for_each_box(module, mode, major, size):
    config = module.Config(mode, major)
    found = compiled_with(module, TYPES[size], config)
    copy, looked = config.line_bytes // config.box_bytes, module.LOOK.line_bytes // config.box_bytes
    assert found.count("UTMALDG") == 2 * copy + looked  # the first loads, the loop's, and dump's
    assert found.count("UTMASTG") == copy + looked
    assert found.spills == 0 and found.registers <= 40 and found.count("LDL") == found.count("STL") == 0


def compiled_with(module, dtype, config):
    class Chosen:
        CONFIG = config

        @staticmethod
        def compile_for(arch, options=""):
            return module.compile_for(arch, dtype, config, options)

    return compiled.compile_module(Chosen, NAME, "sm_90a")


def test_a_load_elects_its_thread_and_a_store_does_not(module):
    kernels = compiled.compile_recipe(NAME, "sm_90a").ptx.split(".entry")[1:]
    elections = {name: text.count("elect.sync") for text in kernels for name in KERNELS if name in text[:40]}
    # Ours: barriers, expect_tx (twice in copy), the store, the last wait. CuTe's: one for each box that is loaded.
    assert elections == {"copy_kernel": 1 + 2 + 1 + 1 + 4, "dump_kernel": 2 + 1, "restore_kernel": 1}


def test_fence_stands_before_the_store_of_what_threads_wrote(module):
    sass = compiled.compile_recipe(NAME, "sm_90a").sass
    restore = next(part for part in sass.split(".section\t.text.")[1:] if "restore_kernel" in part[:60])
    order = [restore.index(word) for word in (" STS ", "FENCE.VIEW.ASYNC", "BAR.SYNC", "UTMASTG")]
    assert order == sorted(order)


# --- the harness, tried on copies that are right and wrong --------------------------------------------------------


class Fake:
    """The recipe as the CPU can be it: `copy` by torch, with what may go wrong; `dump` and `restore` by the model."""

    MODES, MAJORS = dict.fromkeys(MODES), MAJORS

    def __init__(self, module, fault=""):
        self.LOOK, self.CONFIG, self.fault = module.LOOK, module.CONFIG, fault

    def copy(self, x, out, mode, major):
        lines, to = (x, out) if major == "k" else (x.t(), out.t())
        to[: len(to) - (self.fault == "last line")].copy_(lines[: len(to) - (self.fault == "last line")])
        if self.fault == "past the end":
            to.as_strided((1, 1), (1, 1), to.storage_offset() + to.shape[1]).zero_()

    def dump(self, x, origin, mode, major, base):
        lines, corner = (x, origin) if major == "k" else (x.t(), origin[::-1])
        shift = 128 if self.fault == "shifted" else 0
        config = replace(self.LOOK, mode=mode, major=major)
        memory = tma_copies.expected(self.bits(lines), config, corner, base ^ shift)
        return torch.from_numpy(memory.reshape(16, 128)).view(x.dtype)

    def restore(self, memory, out, origin, mode, major, base):
        lines, corner = (out, origin) if major == "k" else (out.t(), origin[::-1])
        config = replace(self.LOOK, mode=mode, major=major)
        raw = memory.view(torch.uint8).numpy().reshape(-1)
        stored = tma_copies.restored(raw, self.bits(lines), config, corner, base)
        lines.view(torch.uint8).copy_(torch.from_numpy(stored.view(np.uint8)))

    @staticmethod
    def bits(lines):
        return lines.view(torch.uint8).numpy().view(BITS[lines.element_size()])


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(tma_copies, "DEVICE", "cpu")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(poisoning, "shared_memory", lambda: None)


@pytest.mark.parametrize(("dtype", "major"), list(product(tma_copies.DTYPES, MAJORS)))
def test_right_copies_and_looks_pass(module, on_cpu, dtype, major):
    fake = Fake(module)
    for gap in tma_copies.GAPS:
        assert tma_copies.run_copy(fake, (65, 17), dtype, "sw64", major, gap).ok
    looks = tma_copies.run_looks(fake, dtype, "sw64", major)
    assert all(case.ok for case in looks) and {case.what for case in looks} == {"dump", "restore"}
    assert tma_copies.summary(looks) == {"copy": 0, "dump": 12, "restore": 8, "failed": []}


def test_wrong_copies_and_looks_are_caught(module, on_cpu):
    assert tma_copies.run_copy(Fake(module, "last line"), (65, 17), "bfloat16", "sw128", "k").problem.endswith("differ")
    past = tma_copies.run_copy(Fake(module, "past the end"), (65, 17), "bfloat16", "sw128", "mn", gap=1)
    assert past.problem == "2 bytes written outside" and not past.ok
    looks = tma_copies.run_looks(Fake(module, "shifted"), "bfloat16", "sw128", "k")
    inside = [case for case in looks if case.what == "dump" and not case.ok]
    assert len(inside) >= 8 and tma_copies.summary(looks)["failed"]


# --- what `cookbook check` and `cookbook bench` make of it ---------------------------------------------------------


@pytest.fixture
def as_if_on_gpu(on_cpu, monkeypatch, tmp_path):
    """A GPU that runs the recipe, as far as the harness asks; few and small copies; results/ is the test's own."""
    small = partial(tma_copies.run_checks, sizes=((3, 5), (65, 17)))
    monkeypatch.setattr(tma_copies, "run_checks", small)
    monkeypatch.setattr(checking, "gpu_for", lambda recipe: ("NVIDIA Test", ""))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA Test")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(records, "results_root", lambda: tmp_path)


def timed(recipe, shape, rounds=12):
    """A record as `timed_record` makes it, with figures that nobody measured."""
    figures = {"median_ms": 1.0, "min_ms": 0.9, "max_ms": 1.1, "gbps": 3.0, "rounds": rounds}
    peers = {tma_copies.COPY: figures | {"ratio": 1.0}}
    about = {"passed": True, "figures": figures, "peers": peers, "device": "NVIDIA Test"}
    return records.make("timed", recipe.name, tma_copies.BENCHED_DTYPE, shape, **about)


@pytest.mark.parametrize("fault", ["", "last line"])
def test_check_runs_every_dtype_and_a_wrong_copy_fails_it(module, as_if_on_gpu, monkeypatch, fault):
    monkeypatch.setattr(catalog.Recipe, "module", Fake(module, fault))
    levels = checking.gpu_levels(catalog.find(NAME), "ran", None, tools=False)
    assert [level.dtype for level in levels] == list(tma_copies.DTYPES)
    assert {level.status for level in levels} == {"failed" if fault else "passed"}
    copies = len(MODES) * len(MAJORS) * len(tma_copies.GAPS) * 2
    for level in levels:
        assert level.figures["copy"] == copies and bool(level.figures["failed"]) == bool(fault)
        assert ("bytes differ" in level.reason) == bool(fault)
        assert level.record["recipe"] == NAME and not records.is_stale(level.record)


def test_check_times_one_shape_and_counts_nothing(as_if_on_gpu, monkeypatch):
    monkeypatch.setattr(tma_copies, "timed_record", timed)
    (level,) = checking.gpu_levels(catalog.find(NAME), "timed", None, tools=True)
    assert (level.status, level.shape, level.dtype) == (
        "passed",
        tma_copies.BENCHED_SHAPES[0],
        tma_copies.BENCHED_DTYPE,
    )
    assert level.record["peers"][tma_copies.COPY]["ratio"] == 1.0
    assert checking.gpu_levels(catalog.find(NAME), "counted", None, tools=True) == []


def test_without_a_gpu_check_shows_what_is_recorded(monkeypatch, tmp_path):
    monkeypatch.setattr(records, "results_root", lambda: tmp_path)
    monkeypatch.setattr(checking, "gpu_for", lambda recipe: (None, "no CUDA device here"))
    (level,) = checking.gpu_levels(catalog.find(NAME), "ran", None, tools=True)
    assert level.status == "not checked" and level.reason.endswith("nothing recorded: not run on hardware")
    recipe = catalog.find(NAME)
    old = timed(recipe, tma_copies.BENCHED_SHAPES[1]) | {"code": "0" * 64}
    records.write([timed(recipe, tma_copies.BENCHED_SHAPES[0]), old])
    levels = checking.gpu_levels(catalog.find(NAME), "timed", None, tools=True)
    assert {level.shape: level.status for level in levels} == {
        tma_copies.BENCHED_SHAPES[0]: "recorded",
        tma_copies.BENCHED_SHAPES[1]: "stale",
    }


def test_bench_times_every_shape_and_keeps_the_records(as_if_on_gpu, monkeypatch, tmp_path):
    from typer.testing import CliRunner

    from cookbook.cli import app

    monkeypatch.setattr(checking, "cannot_run", lambda recipe, targets: "")
    monkeypatch.setattr(tma_copies, "timed_record", timed)
    done = CliRunner().invoke(app, ["bench", NAME, "--rounds", "7", "--record"])
    assert done.exit_code == 0, done.output
    made = records.read(tmp_path)
    assert {tuple(r["shape"]) for r in made} == set(tma_copies.BENCHED_SHAPES)
    assert {r["figures"]["rounds"] for r in made} == {7}


def test_bench_of_an_untimed_study_names_those_that_are():
    with pytest.raises(ValueError, match=f"name: got 'foundations/xor_swizzle'; needed one of .*{NAME}"):
        list(study.PRODUCT.bench(catalog.find("foundations/xor_swizzle"), None))


# --- entry points -----------------------------------------------------------------------------------------------


def refuse(function, error, *parts, **kwargs):
    with pytest.raises((TypeError, ValueError)) as raised:
        function(**kwargs)
    assert type(raised.value) is error and all(part in str(raised.value) for part in parts), raised.value


def test_bad_input_is_named_before_anything_is_launched(module):
    x = torch.zeros(16, 24)
    bad = [
        (TypeError, "x: got list", {"x": [[1.0]]}),
        (TypeError, "x: got torch.float64, elements of 8 bytes; needed elements of 1, 2 or 4", {"x": x.double()}),
        (ValueError, "x: got 3 dimension(s); needed 2", {"x": x[None]}),
        (ValueError, "x: got shape (0, 24); needed no empty", {"x": x[:0]}),
        (ValueError, "sides of at most 2147482624", {"x": torch.empty(2**31 - 1, 4, device="meta")}),
        (ValueError, "x: got requires_grad=True", {"x": x.clone().requires_grad_()}),
        (ValueError, "x: got stride 24 along K; needed 1, for major='k'", {"x": x.t()}),
        (ValueError, "x: got stride 24 along M; needed 1, for major='mn'", {"x": x, "major": "mn"}),
        (ValueError, "x: got 92 bytes along K; needed a multiple of 16", {"x": x[:, :23]}),
        (ValueError, "x: got 60 bytes along M; needed a multiple of 16", {"x": x[:, :15].t(), "major": "mn"}),
        (ValueError, "x: got lines 108 bytes apart; needed a multiple of 16", {"x": torch.zeros(16, 27)[:, :24]}),
        (ValueError, "x: got lines 0 bytes apart", {"x": x[:1].expand(4, 24)}),
        (ValueError, "needed a multiple of 16 bytes", {"x": torch.zeros(16, 32)[:, 1:25]}),
        (ValueError, "mode: got 'fast'; needed one of none, sw32, sw64, sw128", {"x": x, "mode": "fast"}),
        (ValueError, "major: got 'm'; needed one of k, mn", {"x": x, "major": "m"}),
        (ValueError, "out: got shape (8, 24); needed (16, 24)", {"x": x, "out": x[:8].clone()}),
        (TypeError, "out: got torch.float16; needed torch.float32", {"x": x, "out": x.half()}),
        (ValueError, "out: got stride 16 along K", {"x": x, "out": torch.zeros(24, 16).t()}),
        (ValueError, "out: got memory that overlaps x", {"x": x, "out": x}),
        (ValueError, "x: got device cpu; needed a CUDA device", {"x": x}),
    ]
    for error, said, given in bad:
        refuse(module.copy, error, said, **given)


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ({"lines": 12}, "config: got 12 lines of 256 bytes; needed 8, 16, ..., 256 lines of a multiple of 128 bytes"),
        ({"lines": 264}, "config: got 264 lines"),
        ({"line_bytes": 192}, "config: got 64 lines of 192 bytes"),
        ({"stages": 1}, "config: got 1 stage(s); needed 2 or more"),
    ],
)
def test_sizes_that_no_box_or_pipeline_has_are_named(module, sizes, says):
    refuse(module.copy, ValueError, says, x=torch.zeros(16, 24), config=replace(module.CONFIG, **sizes))


def test_bad_corners_and_memories_are_named(module):
    x, memory = torch.zeros(40, 72, dtype=torch.bfloat16), torch.zeros(16, 64, dtype=torch.bfloat16)
    refuse(module.dump, ValueError, "origin: got (0, 4), byte 8 of a line; needed a multiple", x=x, origin=(0, 4))
    refuse(module.dump, ValueError, "origin: got (4, 0), byte 8", x=x.t(), origin=(4, 0), major="mn")
    refuse(module.dump, ValueError, "base: got 64; needed a multiple of 128 under 1024", x=x, base=64)
    refuse(module.dump, ValueError, "base: got 1024", x=x, base=1024)
    refuse(module.dump, ValueError, "x: got device cpu", x=x, origin=(-3, -8))
    refuse(module.restore, ValueError, "origin: got (-1, 0); needed no negative", memory=memory, out=x, origin=(-1, 0))
    refuse(module.restore, ValueError, "memory: got shape (8, 64); needed (16, 64)", memory=memory[:8], out=x)
    refuse(module.restore, TypeError, "memory: got torch.float16", memory=memory.half(), out=x)
    refuse(module.restore, TypeError, "memory: got list", memory=[0], out=x)
    refuse(module.restore, ValueError, "memory: got strides (1, 16)", memory=memory.view(64, 16).t(), out=x)
    refuse(module.restore, ValueError, "out: got device cpu", memory=memory, out=x)


def test_what_is_legal_gets_as_far_as_the_device(module):
    wide = torch.zeros(40, 64, dtype=torch.bfloat16)
    halves = {"x": wide[:, :32], "out": wide[:, 32:]}  # columns of one matrix: no byte in common
    for given in ({"x": wide[:, :8]}, {"x": wide[::3]}, {"x": wide[7:8, 8:24]}, {"x": wide.t(), "major": "mn"}, halves):
        refuse(module.copy, ValueError, "x: got device cpu", **given)
    refuse(module.copy, ValueError, "overlaps", x=wide[:, :32], out=wide[:, 24:56])


def test_a_copied_recipe_stands_alone():
    text = catalog.standalone_source(NAME)
    assert "from cookbook" not in text and "import cookbook" not in text
