"""What the notebooks call, with a GPU that is pretended, and with none: a notebook's own matmul next to torch's."""

from __future__ import annotations

import ast
import re
import time
from copy import deepcopy

import dummy_records
import pytest
import torch

from cookbook import lab
from cookbook.check import levels, poisoning, ran
from cookbook.measure import contest, peers, records
from cookbook.publish import colours, gains
from cookbook.recipe import catalog, cells, entry
from tools.publish import pages

NAME, SCALED, UNTIMED = "hopper/tma_wgmma_gemm", "hopper/fp8_gemm", "blackwell/mxfp8_gemm"
RECORDED, SMALL = (4096, 4096, 4096), (72, 96, 64)


@pytest.fixture
def pretended_gpu(monkeypatch):
    """CPU tensors and the CPU's clock in place of a GPU's: the rest of the way is the real one."""
    own_inputs, own_guarded = ran.inputs, ran.guarded
    monkeypatch.setattr(levels, "gpu_for", lambda recipe: ("A pretended GPU", ""))
    monkeypatch.setattr(ran, "inputs", lambda *given, **named: own_inputs(*given, **{**named, "device": "cpu"}))
    monkeypatch.setattr(ran, "guarded", lambda *given, **named: own_guarded(*given, **{**named, "device": "cpu"}))
    monkeypatch.setattr(poisoning, "shared_memory", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(contest, "elapsed_ms", elapsed)
    monkeypatch.setattr(contest, "BATCH_MS", 0.5)
    monkeypatch.setattr(contest, "WARM_UP_MS", 0.5)
    monkeypatch.setattr(peers, "input_sets", lambda shape, dtype, majors: [(*ran.inputs(shape, dtype), out(shape))])


def elapsed(batch) -> float:
    start = time.perf_counter()
    batch()
    return 1000 * (time.perf_counter() - start)


def out(shape):
    return torch.empty(shape[0], shape[1], dtype=torch.bfloat16)


def of_torch(a, b, *, out):
    return torch.matmul(a, b, out=out)


def off_by_one(a, b, *, out):
    """The last row is left out."""
    out[:-1] = a[:-1] @ b
    return out


def of_blocks(a, b, a_scale, b_scale, *, out):
    """What a GEMM of MXFP8 operands computes, by torch."""
    factors = [
        torch.exp2(scale.view(torch.uint8).float() - 127).repeat_interleave(32, 1) for scale in (a_scale, b_scale)
    ]
    out.copy_((a.float() * factors[0]) @ (b.T.float() * factors[1]).T)
    return out


# --- a notebook's own matmul ------------------------------------------------------------------------------------------


def test_with_no_gpu_the_record_is_shown_with_its_date(capsys):
    lab.compare(NAME, of_torch, RECORDED)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "Nothing was run: no CUDA device here. Recorded of the recipe, not of the cells above:"
    assert second.startswith("NVIDIA H200, 20") and "4096 x 4096 x 4096, bfloat16: " in second
    assert second.endswith("times as fast as torch.matmul")


def test_of_a_kernel_that_no_gpu_has_run_nothing_is_claimed(capsys):
    lab.compare(UNTIMED, of_torch, RECORDED)
    assert capsys.readouterr().out.splitlines()[1] == "no GPU has timed this kernel as it is"


def test_on_a_gpu_the_matmul_given_is_run_compared_and_timed(pretended_gpu, capsys):
    lab.compare(NAME, of_torch, SMALL)
    first, errors, times = capsys.readouterr().out.splitlines()
    assert first.startswith("A pretended GPU, 72 x 96 x 64, bfloat16, normal inputs.")
    ours, torchs = map(float, errors.split(" and "))
    assert 0 < ours == torchs < ran.tolerance("bfloat16")
    assert " µs (" in times and times.endswith("times as fast as torch's")


def test_block_scaled_operands_are_quantized_for_their_matmul(pretended_gpu, capsys):
    lab.compare(UNTIMED, of_blocks, SMALL)
    assert capsys.readouterr().out.splitlines()[2].endswith("times as fast as torch's")


def test_a_wrong_matmul_is_not_timed(pretended_gpu):
    with pytest.raises(lab.CheckFailed, match=r"^matmul: relative error nan; at most"):
        lab.compare(NAME, off_by_one, SMALL)


@pytest.mark.parametrize(
    ("given", "said"),
    [((NAME, of_torch, (1, 2)), "shape: got (1, 2); needed"), ((NAME, of_torch, SMALL, "int8"), "dtype: got 'int8'; ")],
)
def test_what_the_recipe_does_not_take_is_refused(given, said):
    with pytest.raises(ValueError) as refused:
        lab.compare(*given)
    assert str(refused.value).startswith(said)


def test_a_kernel_that_was_compiled_before_an_edit_is_forgotten():
    """Else a cell that was run again would be checked by the kernel of its former text."""
    module = catalog.load(NAME)
    kept = entry.Gemm(module.compile_for, module.prepare, gpus=((9, 0),), needs="wgmma")
    kept.plans[("a call",)] = kept.kernels[("a kernel",)] = object()
    cells = type(module)("cells")
    cells.GEMM = kept
    lab._forget_kernels(cells)
    assert (kept.plans, kept.kernels) == ({}, {})


# --- what it gains ----------------------------------------------------------------------------------------------------


def test_a_gain_and_its_picture_have_the_same_figures():
    said, picture = gains.gain("ampere/smem_gemm", RECORDED, over=["plain", "padded"])
    assert said.startswith("Measured (NVIDIA H200, 4096 x 4096 x 4096, bfloat16, 20")
    assert "times as fast as `plain`, " in said and said.endswith("times as fast as `torch.matmul`.")
    ratio = float(said.split("**")[1])
    values = {
        name: float(picture.svg.split(f'data-name="{name}" data-value="')[1].split('"')[0])
        for name in ("plain", "ours")
    }
    assert ratio == pytest.approx(values["ours"] / values["plain"], abs=0.006)


def test_a_gain_is_drawn_in_the_colours_of_all_charts():
    _, picture = gains.gain("ampere/smem_gemm", RECORDED, over=["plain", "padded"])
    drawn = dict(re.findall(r'data-name="([^"]*)".*?<rect [^>]*fill="(#\w+)"', picture.svg))
    assert drawn == {name: colours.colour_of(name) for name in ("plain", "padded", "ours", "torch.matmul")}


def test_another_page_is_compared_by_its_own_run_and_linked():
    said = gains.gain("ampere/ldmatrix_gemm", RECORDED, over=["ampere/smem_gemm"]).said
    assert "[`ampere/smem_gemm`](../ampere/smem_gemm.ipynb)" in said and "runs of their own" in said
    assert "(../ampere/smem_gemm.md)" in pages._at_a_glance("ampere/ldmatrix_gemm", RECORDED, over=["ampere/smem_gemm"])


def test_what_was_not_timed_is_an_error():
    with pytest.raises(ValueError, match=r"^over: got 'sliced'; needed what was timed: torch.matmul, "):
        gains.gain("ampere/smem_gemm", RECORDED, over=["sliced"])
    assert gains.gain(UNTIMED, RECORDED) == ("*Not measured on a GPU yet.*", None)


def test_baseline_that_was_not_timed_with_the_rest_is_left_out(tmp_path):
    timed = records.select("hopper/multicast_gemm", "timed", "bfloat16")
    record = deepcopy(next(each for each in timed if "alone" in each["peers"]))
    del record["peers"]["alone"]
    records.write([record], tmp_path)
    said = gains.gain("hopper/multicast_gemm", record["shape"], over=["alone"], root=tmp_path).said
    assert "alone" not in said and "times as fast as `torch.matmul`" in said


def test_a_variant_that_is_faster_has_the_sentence(tmp_path):
    """Else a page's first figures would say that its own kernel loses to another kernel of the page."""
    name, shape = "hopper/persistent_gemm", (4096, 4096, 4096)
    found = records.of_one_gpu(name, "timed", "bfloat16", device="NVIDIA H200")
    record = deepcopy(next(each for each in found if tuple(each["shape"]) == shape))
    for ratio, begins in (
        (0.8, "this kernel as `+ serpentine K` is "),
        (1.001, "this kernel is "),
        (1.2, "this kernel is "),
    ):
        record["peers"]["+ serpentine K"]["ratio"] = ratio
        records.write([record], tmp_path)
        said = gains.gain(name, shape, over=["one tile a CTA", "+ serpentine K"], root=tmp_path).said
        assert begins in said
        assert ("**1.25** times as fast as its default" in said) == (ratio == 0.8)


def test_no_page_says_that_a_variant_of_its_own_is_faster():
    for recipe in catalog.recipes():
        for call in re.findall(r"lab\.gain\(.*?\)\n", recipe.file.read_text(encoding="utf-8"), re.S):
            node = ast.parse(call).body[0].value
            named = {each.arg: ast.literal_eval(each.value) for each in node.keywords}
            said = gains.gain(*map(ast.literal_eval, node.args), **named).said
            loses = [
                who
                for ratio, who in re.findall(r"\*\*([\d.]+)\*\* times as fast as `([^`]*)`", said)
                if float(ratio) < 1
            ]
            own = {each for r in records.select(recipe.name, "timed") for each in gains.variants(r)}
            assert not own & set(loses), recipe.name


def test_a_gain_compares_runs_of_one_gpu(tmp_path):
    shape = (4096, 4096, 4096)

    def timed(name, ratio, device):
        made = dummy_records.record(name, shape, ms=2.0, torch_ms=2.0 * ratio, device=device)
        return made | {"figures": made["figures"] | {"ratio": ratio}}

    ours, other, more = "ampere/ldmatrix_gemm", "ampere/smem_gemm", "hopper/gemv"
    records.write([timed(ours, 0.9, "Z GPU"), timed(more, 1.0, "Z GPU")], tmp_path)
    records.write([timed(ours, 0.8, "A GPU"), timed(other, 0.4, "A GPU"), timed(more, 1.0, "A GPU")], tmp_path)
    records.write([timed("hopper/tuned_gemm", 1.0, "Z GPU"), timed("hopper/fp8_gemm", 1.0, "Z GPU")], tmp_path)
    alone = gains.gain(ours, shape, root=tmp_path).said
    assert "Z GPU" in alone and "**0.90** times as fast as `torch.matmul`" in alone  # the GPU with most recipes
    said = gains.gain(ours, shape, over=[other], root=tmp_path).said
    assert "A GPU" in said and "**2.00** times as fast as" in said and "Z GPU" not in said
    assert gains.recorded(ours, shape, root=tmp_path).startswith("Z GPU, 2031-05-06")


def test_the_table_of_a_step_has_clocks_next_to_its_gain(tmp_path):
    name, before = "hopper/multistage_gemm", "hopper/swizzled_gemm"
    gpu = {"device": "NVIDIA H200", "gpu": {"clock_mhz": 1320.0}}
    cubes = [(4096,) * 3, (8192,) * 3]
    known = [dummy_records.record(name, shape, ms=2.0, others={before: 3.0}, **gpu) for shape in cubes]
    unknown = dummy_records.record(name, cubes[0], ms=2.0, others={before: 4.0}, dtype="float16")
    records.write([*known, unknown, dummy_records.record(before, cubes[0], **gpu)], tmp_path)
    shown = gains.step_table(name, 1.2, {before: 600.0, name: 500.0}, tmp_path).splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in shown]
    k_tiles = 32 * 32 * 64 / 132  # of an SM at 4096³, each with 2 ms of 1320 MHz for all of them
    clocks = [f"{counted} / {ms * 1.32e6 / k_tiles:.0f}" for counted, ms in ((600, 3), (500, 2))]
    assert cells[0] == ["4096 x 4096 x 4096", "bfloat16", "1.20x", "1.50x", *clocks]
    assert cells[1][-1] == f"500 / {2 * 1.32e6 / (8 * k_tiles):.0f}"
    assert cells[2] == ["4096 x 4096 x 4096", "float16", "1.20x", "2.00x", "", ""]
    assert gains.step_table(name, 1.2, {}, tmp_path / "none") == "*Not measured on a GPU yet.*"


def test_the_page_shows_todays_records_not_the_notebooks():
    shown = pages._by_arguments(
        'from cookbook import lab\n\nlab.gain("ampere/smem_gemm", (4096, 4096, 4096), over=["plain"])'
    )
    assert len(shown) == 1 and "<figure" in shown[0] and "times as fast as `plain`" in shown[0]
    (line,) = pages._by_arguments(f'lab.compare("{NAME}", matmul, (4096, 4096, 4096))')
    assert "NVIDIA H200" in line and "times as fast as torch.matmul" in line


# --- what cells import ------------------------------------------------------------------------------------------------

# What pages teach by using it: layouts and banks, instructions, pictures, the check of a kernel of one's own.
TAUGHT = {"access", "atoms", "banks", "descriptors", "draw", "layouts", "model", "solve", "swizzle", "testing"}


def imported_by_appendices() -> set[tuple[str, str]]:
    """(module, name) of each import of the package in a cell of an appendix."""
    found = set()
    for recipe in catalog.recipes():
        text = recipe.file.read_text(encoding="utf-8")
        lines = text.splitlines()
        for cell in cells.cells(text):
            if cell.kind != "code" or "lab" not in cell.tags:
                continue
            for node in ast.walk(ast.parse("\n".join(lines[cell.start + 1 : cell.stop]))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cookbook":
                    found |= {(str(node.module), name.name) for name in node.names}
    return found


def test_appendices_import_the_lab_and_what_pages_teach():
    rooms = {[*module.split("."), name][1] for module, name in imported_by_appendices()}
    assert rooms - TAUGHT - {"recipes", "load"} == {"lab"}


def test_the_lab_has_each_name_that_cells_ask_for_and_no_other():
    asked = {name for module, name in imported_by_appendices() if module == "cookbook.lab"}
    assert set(lab.ELSEWHERE) <= asked
    assert [name for name in asked if not hasattr(lab, name)] == []
    with pytest.raises(AttributeError, match="has no attribute 'no_such'"):
        lab.no_such  # noqa: B018
