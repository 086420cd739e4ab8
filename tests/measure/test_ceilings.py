"""The studies of ceilings without a GPU: their loops in the machine code, what they claim, and how it is recorded."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from cookbook import access, banks
from cookbook.check import compiled as compiling
from cookbook.cli import app
from cookbook.layouts import evaluate
from cookbook.measure import ceilings, contest, records
from cookbook.publish import ceiling_tables, markdown
from cookbook.recipe import catalog
from tools.publish import charts, pages

TENSOR_CORES, MEMORY = ceilings.studies()


@pytest.fixture(scope="module")
def tensor_cores():
    return catalog.load(TENSOR_CORES)


@pytest.fixture(scope="module")
def memory():
    return catalog.load(MEMORY)


# --- the loops ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def loops():
    found = {}
    for name, target in (
        (TENSOR_CORES, "sm_80"),
        (TENSOR_CORES, "sm_90a"),
        (MEMORY, "sm_90a"),
    ):
        compiled = compiling.compile_recipe(name, target)
        assert compiled.spills == 0
        found[name, target] = ceilings.loops(compiled.sass)
    return found


def of(loops, opcode):
    """The loops that hold an opcode which begins so, and how many of them each."""
    counts = [(loop, sum(n for name, n in loop.items() if name.startswith(opcode))) for loop in loops]
    return [(loop, count) for loop, count in counts if count]


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_loop_of_mma_sync_is_64_of_them_and_its_counter(loops, target):
    found = of(loops[TENSOR_CORES, target], "HMMA")
    assert len(found) == 4 and {count for _, count in found} == {64}
    for loop, _ in found:
        rest = {name.split(".")[0]: n for name, n in loop.items() if not name.startswith("HMMA")}
        assert rest.keys() <= {"IADD3", "VIADD", "UIADD3", "ISETP", "UISETP", "BRA"} and sum(rest.values()) <= 4, loop


def test_loop_of_wgmma_is_eight_of_them_and_no_access_to_memory(loops):
    everything = loops[TENSOR_CORES, "sm_90a"]
    found = of(everything, "HGMMA") + of(everything, "QGMMA")
    assert len(found) == 9 and {count for _, count in found} == {8}
    for loop, _ in found:
        opcodes = {name.split(".")[0] for name in loop}
        assert not opcodes & {"LDS", "LDSM", "LDG", "LDL", "STS", "STG", "STL", "R2UR", "BAR"}, loop
        # What else there is runs on the uniform data path, or counts.
        plain = {o for o in opcodes if not o.startswith("U")} - {"HGMMA", "QGMMA", "WARPGROUP", "NOP"}
        assert plain <= {"IADD3", "VIADD", "ISETP", "BRA"}, loop


def test_loops_of_memory_move_what_they_should(loops):
    everything = loops[MEMORY, "sm_90a"]
    reads, writes = of(everything, "LDG.E.128"), of(everything, "STG.E.128")
    assert [count for _, count in reads] == [4, 4] and [count for _, count in writes] == [4, 4]
    assert sum("STG.E.128" in loop for loop, _ in reads) == 1  # the copy
    assert sorted(next(name for name in loop if name.startswith("LDS")) for loop, _ in of(everything, "LDS")) == [
        *["LDS"], *["LDS.128"] * 4, "LDS.64"
    ]  # fmt: skip
    assert {count for _, count in of(everything, "LDS")} == {8}


def test_loops_finds_inner_loops_and_takes_no_forward_branch():
    sass = """
.L_x_0:
        /*0010*/ IADD3 R0 ;
.L_x_1:
        /*0020*/ @P0 BRA `(.L_x_2) ;
        /*0030*/ @!P1 HMMA.16816.F32 R1 ;
        /*0040*/ @P1 BRA `(.L_x_1) ;
.L_x_2:
        /*0050*/ @P2 BRA `(.L_x_0) ;
        /*0060*/ EXIT ;
"""
    assert ceilings.loops(sass) == [{"BRA": 2, "HMMA.16816.F32": 1}]


# --- what the recipes compute -------------------------------------------------------------------------------------


def test_every_configuration_compiles(tensor_cores, memory):
    for config in {*tensor_cores.IN_FLIGHT.values()} - {*tensor_cores.INSTRUCTIONS.values()}:
        tensor_cores.compile_one(config, "sm_90a")
    for config in memory.IN_FLIGHT.values():
        memory.compile_one(config, "sm_90a")


def test_a_turn_is_whole_instructions_and_fits_the_chip(tensor_cores):
    for config in (*tensor_cores.INSTRUCTIONS.values(), *tensor_cores.IN_FLIGHT.values()):
        each, turn = (tensor_cores.flops(shape) for shape in (config.instruction, config.tile))
        groups = config.warps * config.m * config.n * 2 if hasattr(config, "warps") else config.warpgroups * 8
        assert turn == groups * each and config.threads <= 1024
        assert config.smem_bytes <= compiling.smem_limit("sm_90a")
        assert tensor_cores.accumulator_registers(config) <= 128


def test_operands_lie_in_the_swizzle_that_wgmma_reads(tensor_cores):
    from cutlass.cute.nvgpu import warpgroup

    def theirs(dtype):
        import cutlass.cute as cute

        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, dtype)
        return cute.tile_to_shape(atom, (64, 2048 // dtype.width), order=(0, 1))

    for name in ("bfloat16", "float8_e4m3fn"):
        dtype = tensor_cores.DTYPES[name]
        assert evaluate(tensor_cores.smem_layout, dtype, 64) == evaluate(theirs, dtype)


def test_banks_are_counted_as_the_package_counts_them(memory):
    for config in memory.LOADS.values():
        one = access.ldst([lane * config.stride for lane in range(32)], config.width)
        assert memory.wavefronts(config) == banks.wavefronts(one.addresses, one.width).actual
        last = 31 * config.stride + config.width + (config.unroll - 1) * config.smem_bytes // config.unroll
        assert last <= config.smem_bytes


def test_wrong_data_is_named(tensor_cores):
    with pytest.raises(ValueError, match="data: got 'ones'; needed one of normal, integers, zeros"):
        tensor_cores.operands(tensor_cores.MmaSync(), "ones")


@pytest.mark.parametrize(
    ("arch", "wgmma", "bulk"), [("sm_80", False, False), ("sm_90a", True, True), ("sm_100a", False, True)]
)
def test_an_architecture_gets_the_kernels_it_has(tensor_cores, memory, arch, wgmma, bulk):
    assert tensor_cores.runs_on(tensor_cores.Wgmma(), arch) == wgmma and tensor_cores.runs_on(
        tensor_cores.MmaSync(), arch
    )
    assert memory.runs_on(memory.Bulk(), arch) == bulk and memory.runs_on(memory.Stream(), arch)


# --- beside a GEMM ------------------------------------------------------------------------------------------------


def test_the_gemms_are_held_against_the_instruction_they_use():
    study = catalog.find(TENSOR_CORES)
    assert ceilings.unit_of(catalog.find("hopper/tma_wgmma_gemm")) == ("wgmma", study)
    assert ceilings.unit_of(catalog.find("ampere/ldmatrix_gemm")) == ("mma.sync", study)
    assert ceilings.unit_of(catalog.find("blackwell/tma_tcgen05_gemm")) is None


class FakeCeiling:
    """Stands for a kernel on a GPU: counts turns."""

    turn_flops = 1000

    def __init__(self, config):
        self.config, self.turns = config, []

    def __call__(self, turns):
        self.turns.append(turns)


@pytest.fixture
def fake(tensor_cores, monkeypatch):
    import torch

    made = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(tensor_cores, "Ceiling", lambda config: made.append(FakeCeiling(config)) or made[-1])
    return made


def held(work):
    return contest.Contest({"ours": None, "torch.matmul": None}, [()], "torch.matmul", work)


def test_a_contest_gets_the_ceiling_with_as_much_work(fake, tensor_cores):
    found = ceilings.with_ceiling(catalog.find("hopper/tma_wgmma_gemm"), held(15_600.0), "float16")
    found.variants[ceilings.PEER](1, 2, 3)
    assert fake[0].config == tensor_cores.Wgmma("float16") and fake[0].turns == [16]
    assert found.scale == {"ceiling": pytest.approx(15.6 / 16)} and list(found.variants)[:2] == ["ours", "torch.matmul"]
    small = ceilings.with_ceiling(catalog.find("ampere/ldmatrix_gemm"), held(10.0), "bfloat16")
    small.variants[ceilings.PEER]()
    assert fake[1].config == tensor_cores.MmaSync("bfloat16") and fake[1].turns == [1]
    assert small.scale == {"ceiling": pytest.approx(0.01)}


def test_a_gpu_without_the_instruction_has_no_ceiling(fake, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 0))
    unchanged = held(1e6)
    assert ceilings.with_ceiling(catalog.find("hopper/tma_wgmma_gemm"), unchanged, "float16") is unchanged


def test_a_gemm_without_tensor_cores_is_held_to_reading(memory, monkeypatch):
    import torch

    read = []
    monkeypatch.setattr(memory, "stream_over", lambda x, y, config: read.append((x.data_ptr(), x.nbytes, config)))
    sets = [(None, torch.empty(100, 1000, dtype=torch.bfloat16).T, None) for _ in range(2)]
    (without,) = [each for each in catalog.recipes() if not each.tensor_cores]
    found = ceilings.with_ceiling(without, contest.Contest({"ours": None}, sets, "ours", 1.0), "bfloat16")
    found.variants[ceilings.PEER](*sets[1])
    chunk = memory.STREAMS["read"].chunk_bytes
    assert read[-1] == (sets[1][1].data_ptr(), 200_000 // chunk * chunk, memory.STREAMS["read"])
    assert found.scale == {"ceiling": 200_000 / read[-1][1]} and found.scale["ceiling"] > 1


def test_times_are_those_of_as_much_work(monkeypatch):
    run = []  # every batch, in order
    batches = {name: lambda name=name: run.append(name) for name in ("ours", "ceiling")}
    made = contest.Batches(batches, dict.fromkeys(batches, 1), "stream")
    monkeypatch.setattr(contest, "make_batches", lambda *_: made)
    monkeypatch.setattr(contest, "warm_up", lambda *_: None)
    monkeypatch.setattr(contest, "elapsed_ms", lambda batch: batch() or 2.0)
    two = contest.Contest({"ours": None, "ceiling": None}, [()], "ours", 1e9, scale={"ceiling": 0.75})
    timed = contest.time_contest(two, 7)
    assert (timed["ours"]["median_ms"], timed["ceiling"]["median_ms"]) == (2.0, 1.5)
    assert len(run) == 2 * 2 * 7 and run[::2] == run[1::2]  # each timed batch comes after one of its own kind


# --- recorded and shown -------------------------------------------------------------------------------------------

RATE = {"tflops": 700.0, "tflops_min": 690.0, "tflops_max": 705.5, "flops_per_clock": 4090.0, "clock_ghz": 1.305}
INSTRUCTIONS = {
    "instructions": {"wgmma m64n256k16, bf16": RATE, "mma.sync m16n8k16, bf16": RATE | {"tflops": 691.0}},
    "in flight": {"one": RATE},
    "data": {"zeros": RATE},
}
BYTES = {"gbps": 4000.4, "gbps_min": 3900.0, "gbps_max": 4100.0}
OF_MEMORY = {
    "read": {"8 MiB": BYTES, "4096 MiB": BYTES | {"gbps": 4050.0}},
    "copy by torch": {"4096 MiB": BYTES},
    "in flight": {"2 KiB an SM": BYTES},
    "shared memory": {"16 bytes a lane, 32 apart": {"bytes_per_clock": 63.94, "predicted": 64.0}},
}


def measured(name, figures):
    return records.make("ceiling", name, "", None, passed=True, figures=figures, device="NVIDIA Test 1")


@pytest.fixture
def root(tmp_path):
    records.write([measured(TENSOR_CORES, INSTRUCTIONS), measured(MEMORY, OF_MEMORY)], tmp_path)
    return tmp_path


def test_tables_show_every_figure(root):
    text = ceiling_tables.ceiling_table(TENSOR_CORES, root)
    assert "| wgmma m64n256k16, bf16 | 700 (690 to 706) | 4090 | 1.30 |" in text
    assert (
        text.index("**Instructions**")
        < text.index("**In flight**")
        < text.index("**Data**")
        < text.index("NVIDIA Test 1")
    )
    text = ceiling_tables.ceiling_table(MEMORY, root)
    assert "| buffer | read | copy by torch |" in text
    assert "| 8 MiB | 4000 |  |" in text and "| 4096 MiB | 4050 | 4000 |" in text
    assert "| 16 bytes a lane, 32 apart | 63.9 | 64 |" in text and "| 2 KiB an SM | 4000 (3900 to 4100) |" in text


def test_charts_are_of_rates(root):
    assert "691" in charts.ceiling_chart(TENSOR_CORES, root).svg
    svg = charts.ceiling_chart(MEMORY, root).svg
    assert "8 MiB" in svg and "GB/s" in svg


def test_nothing_measured_and_stale_are_said(root, tmp_path_factory):
    empty = tmp_path_factory.mktemp("empty")
    assert ceiling_tables.ceiling_table(MEMORY, empty) == markdown.NOT_MEASURED_ON_A_GPU
    assert charts.ceiling_chart(MEMORY, empty) is None
    for file in root.glob("*/*/*.json"):
        file.write_text(re.sub(r'"code": "\w+"', '"code": "0"', file.read_text()))
    assert "on an earlier version" in ceiling_tables.ceiling_table(MEMORY, root)
    assert charts.ceiling_chart(MEMORY, root) is None


def test_a_page_shows_the_records_as_they_are(monkeypatch):
    monkeypatch.setattr(ceiling_tables, "ceiling_table", lambda name, laid: f"now: {name}")
    monkeypatch.setattr(charts, "ceiling_chart", lambda name, gpu: None)
    shown = pages._live(MEMORY)
    cell = SimpleNamespace(cell_type="code", source="Markdown(ceiling_table('x'))", metadata={}, outputs=[])
    assert pages._cell(cell, shown)[1:] == [f"now: {MEMORY}"]


def test_a_record_in_words():
    assert ceilings.in_words(INSTRUCTIONS).startswith("instructions: at most 700 TFLOP/s (wgmma m64n256k16, bf16); in")
    assert "shared memory: at most 63.9 bytes a clock and SM" in ceilings.in_words(OF_MEMORY)


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        (RATE | {"tflops": 800.0}, "x, y: tflops 800.0 outside its spread"),
        (RATE | {"flops_per_clock": 9000.0}, "x, y: 9000.0 operations a clock"),
        ({"bytes_per_clock": 200.0}, "x, y: 200.0 bytes a clock"),
        (BYTES | {"gbps": 0.0, "gbps_min": 0.0}, "x, y: gbps 0.0 outside its spread"),
    ],
)
def test_what_cannot_be_is_not_recorded(figures, says):
    assert ceilings.implausible({"x": {"y": figures}}) == [says]
    assert ceilings.implausible(INSTRUCTIONS) == ceilings.implausible(OF_MEMORY) == []


def test_what_does_not_hold_on_a_gpu_raises(memory, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(memory, "measure", lambda rounds: {"read": {"8 MiB": BYTES | {"gbps": 1.0}}})
    with pytest.raises(RuntimeError, match=r"read, 8 MiB: gbps 1\.0 outside"):
        ceilings.measure(MEMORY, rounds=7)
    with pytest.raises(ValueError, match="name: got 'foundations/xor_swizzle'; needed one of"):
        ceilings.measure("foundations/xor_swizzle")


def test_bench_takes_these_studies_and_no_other():
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, ["bench", MEMORY, "--shape", "8,8,8"])
    assert done.exit_code == 2 and "needed none" in done.output
    done = CliRunner().invoke(app, ["bench", "foundations/xor_swizzle"])
    assert done.exit_code == 2 and "needed a recipe with something to time" in " ".join(done.output.split())
