"""The host side that all recipes share: what memory two matrices have in common, what is refused, who may compile.

What a recipe makes of it is in test_entry_errors.py, test_entry_plans.py and, on a GPU, gpu/test_matmul.py and
gpu/test_threads.py.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import threading
import time
from types import FunctionType, SimpleNamespace

import numpy as np
import pytest
import torch
from pretend import pretend_device, pretended
from threads import ABORTS, FIRST_COMPILES, run_beside_copies

from cookbook.check.scaled import integers, tensors
from cookbook.recipe import catalog, copy, entry
from cookbook.recipe.formats import FORMATS

GEMMS = [r.name for r in catalog.recipes() if r.product.is_gemm]
HALVES = [r.name for r in catalog.recipes() if r.product.of_two_matrices]
CODE = {name: "\n".join(catalog.code(catalog.find(name))) for name in GEMMS}
# Recipes that choose an atom by the length of a row, those in which it is a k-tile's, and those that define the rule.
CHOOSERS = [name for name in GEMMS if "def smem_atom(dtype, contiguous" in CODE[name]]
BY_TILE_K = [name for name in CHOOSERS if re.search(r"smem_atom\(dtype, \w+\.tile_k\)", CODE[name])]
TEACHERS = [name for name in CHOOSERS if "def smem_atom(" in catalog.find(name).file.read_text(encoding="utf-8")]


# --- the memory of two matrices -------------------------------------------------------------------------------------


@pytest.fixture
def draw():
    generator = torch.Generator().manual_seed(0)
    return lambda low, high: int(torch.randint(low, high, (1,), generator=generator))


def share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    try:
        entry.check_apart(x, y=y)
    except ValueError as error:
        assert str(error) == "out: got memory that overlaps y; needed memory of its own"
        return True
    return False


def test_overlap_agrees_with_counting_bytes(draw):
    """For rows of one stride it is exact, for rows of different strides, or a row beside columns, never wrong."""
    buffer = torch.zeros(400, dtype=torch.float16)

    def view(row):
        return buffer.as_strided((draw(1, 6), draw(1, 6)), (row, 1), draw(0, 120))

    missed, refused = 0, 0
    for _ in range(1000):
        row, other = draw(6, 12), draw(6, 12)
        x, y = view(row), view(other if draw(0, 2) else row)
        x, y = (x.T if draw(0, 4) == 0 else x), (y.T if draw(0, 4) == 0 else y)
        buffer.zero_()
        x += 1
        share = bool((y != 0).any())
        missed += share and not share_memory(x, y)
        alike = x.stride() == y.stride() and min(x.numel(), y.numel()) > 1
        refused += alike and share_memory(x, y) and not share
    assert missed == 0
    assert refused == 0


@pytest.mark.parametrize("size", [1, 2, 4])
def test_matrix_begins_and_ends_in_memory_where_its_elements_do(draw, size):
    buffer = torch.zeros(400, dtype={1: torch.uint8, 2: torch.float16, 4: torch.float32}[size])
    for _ in range(100):
        shape, row = (draw(1, 6), draw(1, 6)), draw(6, 12)
        x = buffer.as_strided(shape, (row, 1), draw(0, 100))
        x = x.T if draw(0, 2) else x
        buffer.zero_()
        x += 1
        used = buffer.nonzero()
        start, step, width, end = entry.in_memory(x)
        assert (start - buffer.data_ptr(), end - buffer.data_ptr()) == (size * used.min(), size * (used.max() + 1))
        assert width in (size * shape[0], size * shape[1])
        assert min(shape) == 1 or (step, width) == (size * row, size * shape[1])


def test_store_width_divides_everything():
    buffer = torch.empty(4096, dtype=torch.float16)
    start = -buffer.data_ptr() % 16 // 2
    for offset in range(9):
        for n in (1, 2, 6, 8, 12, 16, 20, 24):
            for gap in (0, 1, 2, 4, 8):
                out = buffer.as_strided((3, n), (n + gap, 1), start + offset)
                vec = entry.store_width(out, n + gap)
                wider = 2 * vec
                assert n % vec == 0 and (n + gap) % vec == 0 and out.data_ptr() % (2 * vec) == 0
                assert vec == 8 or n % wider or (n + gap) % wider or out.data_ptr() % (2 * wider)


# --- what every recipe refuses --------------------------------------------------------------------------------------


def operands(name: str) -> dict[str, torch.Tensor]:
    """What `matmul` of a recipe takes: a (16, 64), b (64, 24), and what more it wants."""
    form = FORMATS.get(catalog.find(name).operands)
    if catalog.find(name).kind == "grouped_k":
        a, b = (torch.ones(64, rows, dtype=torch.bfloat16) for rows in (16, 24))
        return {"a": a.T, "b": b, "offs": torch.tensor([5, 64], dtype=torch.int32)}
    if catalog.find(name).kind.startswith("grouped"):
        dtype = getattr(torch, form.torch_element) if form else torch.bfloat16
        a, b, offs = torch.ones(16, 64).to(dtype), torch.ones(2, 24, 64).to(dtype).mT, torch.tensor([5, 16])
        factors = {"scale_a": torch.ones(16), "scale_b": torch.ones(2, 24)} if form else {}
        return {"a": a, "b": b, **factors, "offs": offs.to(torch.int32)}
    if not form:
        further = {"b2": torch.ones(40, 24, dtype=torch.bfloat16).T} if catalog.find(name).kind == "chained" else {}
        a, bt = (torch.ones(rows, 64, dtype=torch.bfloat16) for rows in (16, 24))
        return {"a": a, "b": bt.T} | further
    if form.packed:  # int4 is uint8 to pack, with a zero point of 8
        values, scales = torch.full((64, 128), 9, dtype=torch.uint8), torch.ones(64, 1, dtype=torch.bfloat16)
        packed = catalog.load(name).pack(values, scales)
        return {"a": torch.ones(16, 128, dtype=torch.bfloat16), "weight": packed.weight, "scales": packed.scales}
    if not form.scale:
        return {"a": torch.ones(16, 64, dtype=torch.int8), "b": torch.ones(24, 64, dtype=torch.int8).T}
    sides = ((16, 1), (24, form.b_rows))
    (a, a_scale), (bt, b_scale) = (tensors(integers(rows, 64, form.name, 0, each)) for rows, each in sides)
    if not form.by_mma:
        return {"a": a, "b": bt.T, "scale_a": a_scale, "scale_b": b_scale.T}
    return {"a": a, "b": bt.T, "a_scale": a_scale, "b_scale": b_scale}


@pytest.mark.parametrize("name", GEMMS)
def test_the_negative_bit_is_refused_after_a_plan_without_it(name, monkeypatch):
    """A view of -x that has the memory of x: a kernel, which reads memory, would multiply x."""
    module, given = pretended(name, monkeypatch), operands(name)
    out = module.matmul(**given)
    given["out"] = out
    module.matmul(**given)
    negative = {key: x for key, x in given.items() if x.dtype in (torch.bfloat16, torch.int8) or key == "out"}
    assert ("a" in negative) == (catalog.find(name).operands in ("", "int8", "int4"))
    for key, x in negative.items():
        lazy = torch._neg_view(x)
        assert lazy.data_ptr() == x.data_ptr() and lazy.is_neg()
        fix = rf"{key}: got a view with PyTorch's neg bit; needed its values in memory: \.resolve_neg\(\)"
        for _ in range(2):
            with pytest.raises(ValueError, match=fix):
                module.matmul(**given | {key: lazy})
    assert len(module.launched) == 2
    for key in negative.keys() - {"out"}:
        resolved = torch._neg_view(given[key]).resolve_neg()
        module.matmul(**given | {key: torch.empty_like(given[key]).copy_(resolved)})  # of the same strides


def test_the_imaginary_part_of_a_conjugate_is_such_a_view():
    """It is where people meet the bit."""
    x = torch.zeros(8, 8, dtype=torch.complex64).conj().imag
    with pytest.raises(ValueError, match=r"x: got a view with PyTorch's neg bit"):
        entry.check_tensor("x", x, (torch.float32,))
    with pytest.raises(ValueError, match=r"x: got a view with PyTorch's conj bit; needed .*\.resolve_conj\(\)"):
        entry.check_tensor("x", torch.zeros(8, 8, dtype=torch.complex64).conj(), None)


@pytest.mark.parametrize(
    ("name", "function"), [("foundations/matrix_transpose", "transpose"), ("hopper/tma_copy", "copy")]
)
def test_the_other_entry_points_refuse_the_bits_too(name, function):
    call = getattr(catalog.load(name), function)
    with pytest.raises(ValueError, match=r"x: got a view with PyTorch's neg bit; needed .*\.resolve_neg\(\)"):
        call(torch._neg_view(torch.ones(16, 32)))
    if name == "hopper/tma_copy":
        with pytest.raises(ValueError, match=r"x: got a view with PyTorch's conj bit; needed .*\.resolve_conj\(\)"):
            call(torch.zeros(16, 32, dtype=torch.complex32).conj())


@pytest.mark.parametrize("name", TEACHERS)
def test_a_row_that_no_atom_divides_is_refused_by_name(name):
    import cutlass

    for contiguous in (4, 12, 7, 0.5):
        with pytest.raises(
            ValueError, match=rf"contiguous: got {contiguous} elements; needed a multiple of 8: 16 bytes"
        ):
            catalog.load(name).smem_atom(cutlass.Float16, contiguous)


@pytest.mark.parametrize("name", [name for name in BY_TILE_K if name in HALVES])
def test_a_tile_that_no_atom_divides_is_refused_by_name(name):
    import cutlass

    from cookbook.layouts import evaluate

    module = catalog.load(name)
    with pytest.raises(ValueError, match="contiguous: got 4 elements; needed a multiple of 8"):
        evaluate(module.smem_layouts, cutlass.Float16, module.Config(tile_k=4))


def test_the_rule_of_the_atom_is_in_every_track():
    assert {name.split("/")[0] for name in CHOOSERS} == {"ampere", "hopper", "blackwell"} and len(CHOOSERS) >= 20
    assert {"ampere/ldmatrix_gemm", "hopper/tma_wgmma_gemm"} <= set(TEACHERS)
    for name in GEMMS:  # a rule written otherwise would escape the test above
        assert ("next(bits" not in CODE[name]) and ("next((bits" in CODE[name]) == (name in CHOOSERS), name


def test_no_recipe_has_a_host_side_of_its_own():
    """What entry.py and the modules beside it define is defined there alone."""
    sides = [each for each in copy.SHARED if not each.endswith((".operator", ".alone"))]
    shared = {name for node in ast.parse(copy._sources(sides)).body for name in copy._defined(node)} - {""}
    assert {"Gemm", "check_apart", "require", "line_stride", "TYPES_OF_C", "MATRICES", "FurtherGemm"} <= shared
    for recipe in catalog.recipes():
        own = ast.parse(catalog.without_lab(recipe.file.read_text())).body
        written = (ast.FunctionDef, ast.ClassDef, *((ast.Assign, ast.AnnAssign) if recipe.product.is_gemm else ()))
        again = shared & {name for node in own if isinstance(node, written) for name in copy._defined(node)}
        about = {"foundations/gpc_remapping": {"remapping"}}
        assert again == about.get(recipe.name, set()), recipe.name


# --- plans ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GEMMS)
def test_a_plan_made_within_a_capture_serves_that_call_alone(name, monkeypatch):
    """What a capture forbids to ask for, the next call outside of one asks for."""
    module, given = pretended(name, monkeypatch), operands(name)
    capturing = [True, True, False, False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    kept = []
    while capturing:
        module.matmul(**given)
        kept.append((len(module.planned), len(module.GEMM.plans)))
        capturing.pop(0)
    assert kept == [(1, 0), (2, 0), (3, 1), (3, 1)] and len(module.launched) == 4


@pytest.mark.parametrize("name", ["hopper/tuned_gemm", "hopper/majors_gemm"])
def test_a_first_call_in_a_capture_leaves_later_ones_remapped(name, monkeypatch):
    module = pretended(name, monkeypatch)
    capturing, table = [True], torch.zeros(66, dtype=torch.int32)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing[0])
    monkeypatch.setattr(module, "remap_of", lambda *_: 0 if capturing[0] else table.data_ptr())
    a, b = torch.zeros(256, 64, dtype=torch.bfloat16), torch.zeros(256, 64, dtype=torch.bfloat16).T
    module.matmul(a, b, variant="128x256")
    capturing[0] = False
    module.matmul(a, b, variant="128x256")
    module.matmul(a, b, variant="128x256")
    assert [arguments[3] for _, arguments in module.launched] == [0, table.data_ptr(), table.data_ptr()]
    assert [which[2].gpc_aware for which, _ in module.launched] == [False, True, True]


@pytest.mark.parametrize("name", GEMMS)
def test_what_cannot_be_a_key_is_named(name, monkeypatch):
    module, given = pretended(name, monkeypatch), operands(name)
    if "variant" in module.matmul.__kwdefaults__:
        for variant in (["128x256"], {}, None, 1):
            with pytest.raises(ValueError, match=re.escape(f"variant: got {variant!r}; needed one of")):
                module.matmul(**given, variant=variant)


@pytest.mark.parametrize("name", [name for name in GEMMS if "VARIANTS" in vars(catalog.load(name))])
def test_a_variant_may_be_named_by_another_kind_of_string(name, monkeypatch):
    module, given = pretended(name, monkeypatch), operands(name)
    for variant in module.VARIANTS:
        for _ in range(2):
            module.matmul(**given, variant=np.str_(variant))
    asked = {which[2] for which, _ in module.launched}
    assert len(module.GEMM.plans) == len(module.VARIANTS) and len(asked) > 1


# --- empty groups ---------------------------------------------------------------------------------------------------

GROUPED = [r.name for r in catalog.recipes() if r.kind.startswith("grouped")]


@pytest.mark.parametrize("name", GROUPED)
@pytest.mark.parametrize("empty", ["slices", "new tensors"])
def test_a_product_of_no_tokens_is_torchs_and_launches_nothing(name, empty, monkeypatch):
    """What an idle rank of expert parallelism calls: no rows, and for a weight's gradient K = 0."""
    module, given = pretended(name, monkeypatch), operands(name)
    along_k = catalog.find(name).kind == "grouped_k"
    given["a"], given["offs"] = (given["a"][:, :0] if along_k else given["a"][:0]), given["offs"] * 0
    if along_k:
        given["b"] = given["b"][:0]
    elif "scale_a" in given:
        given["scale_a"] = given["scale_a"][:0]
    if empty == "new tensors":
        given["a"] = torch.empty(0, 16, dtype=given["a"].dtype).T if along_k else given["a"].new_empty(0, 64)
    shape = (2, 16, 24) if along_k else (0, 24)
    if given["a"].dtype == torch.bfloat16 and hasattr(torch, "_grouped_mm"):
        theirs = torch._grouped_mm(given["a"], given["b"], offs=given["offs"])
        assert theirs.shape == shape and (theirs == 0).all()
    out = torch.full(shape, float("nan"), dtype=torch.bfloat16)
    for _ in range(2):
        for to in (None, out):
            made = module.matmul(**given, out=to)
            assert made.shape == shape and made.dtype == torch.bfloat16 and (made == 0).all() and to in (None, made)
    assert not module.launched and not module.GEMM.kernels and len(module.planned) == 2
    full = operands(name)
    module.matmul(**full)
    assert len(module.launched) == 1


@pytest.mark.parametrize("name", GROUPED)
def test_a_product_of_no_tokens_is_checked_like_any_other(name, monkeypatch):
    module, given = pretended(name, monkeypatch), operands(name)
    given["a"] = given["a"][:, :0] if catalog.find(name).kind == "grouped_k" else given["a"][:0]
    given |= {"b": given["b"][:0]} if catalog.find(name).kind == "grouped_k" else {}
    given |= {"scale_a": given["scale_a"][:0]} if "scale_a" in given else {}
    module.matmul(**given)
    for key, wrong, error in (
        ("offs", given["offs"].long(), TypeError),
        ("offs", given["offs"][:0], ValueError),
        ("b", given["b"].double(), TypeError),
        ("out", torch.zeros(1, 24, dtype=torch.bfloat16), ValueError),
        ("a", given["a"].double(), TypeError),
    ):
        with pytest.raises(error, match=f"{key}: got "):
            module.matmul(**given | {key: wrong})
    if given["a"].dtype == torch.bfloat16:
        with pytest.raises(ValueError, match=r"a: got requires_grad=True; needed torch\.no_grad\(\)"):
            module.matmul(**given | {"a": given["a"].clone().requires_grad_()})


# --- what a call writes -----------------------------------------------------------------------------------------------


def changes(x: torch.Tensor, call) -> int:
    """By how much a call raises the version that autograd compares."""
    before = x._version
    call()
    return x._version - before


@pytest.mark.parametrize("name", GEMMS)
def test_autograd_is_told_that_out_was_overwritten(name, monkeypatch):
    """Rows that the kernel writes, and rows that are copied to."""
    module, given = pretended(name, monkeypatch), operands(name)
    outs = [module.matmul(**given)]
    if not catalog.find(name).kind.startswith("grouped"):
        *rows, n = outs[0].shape
        outs.append(outs[0].new_zeros(*rows, n + 1)[..., :n])
    for out in outs:
        weight = torch.ones(out.shape, requires_grad=True)
        for first in (True, False):
            with torch.no_grad():
                assert changes(out, lambda out=out: module.matmul(**given, out=out)) >= 1, first
        if out.dtype.is_floating_point:  # as autograd sees it
            product = (weight * out).sum()
            module.matmul(**given, out=out)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                product.backward()


@pytest.mark.parametrize("name", GEMMS)
def test_a_call_that_is_refused_leaves_the_version_of_out(name, monkeypatch):
    module, given = pretended(name, monkeypatch), operands(name)
    out = module.matmul(**given)

    def refused():
        with pytest.raises((TypeError, ValueError)):
            module.matmul(**given | {"a": given["a"][:, :-1]}, out=out)

    assert changes(out, refused) == 0


def test_out_may_be_an_inference_tensor(monkeypatch):
    """It has no version."""
    module, given = pretended("hopper/tuned_gemm", monkeypatch), operands("hopper/tuned_gemm")
    with torch.inference_mode():
        out = module.matmul(**given)
        assert out.is_inference() and module.matmul(**given, out=out) is out
    assert module.matmul(**given, out=out) is out
    made = torch.zeros(16, 24, dtype=torch.bfloat16)
    with torch.inference_mode():
        assert changes(made, lambda: module.matmul(**given, out=made)) == 1


def test_a_compiled_function_around_matmul_tells_autograd(monkeypatch):
    module, given = pretended("hopper/tuned_gemm", monkeypatch), operands("hopper/tuned_gemm")
    out = module.matmul(**given)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, b, out: module.matmul(a, b, out=out).view(-1), backend="eager")
    for _ in range(2):
        assert changes(out, lambda: compiled(**given, out=out)) >= 1


def amax_of(monkeypatch):
    module = pretended("hopper/amax_epilogue_gemm", monkeypatch)
    return lambda amax: module.matmul_amax(**operands("hopper/amax_epilogue_gemm"), amax=amax), torch.zeros(1)


def chained(monkeypatch):
    module = pretended("hopper/pdl_chain", monkeypatch)
    x, weights = torch.ones(16, 64, dtype=torch.bfloat16), [torch.ones(64, 64, dtype=torch.bfloat16).T] * 2
    return lambda out: module.chain(x, weights, out=out), torch.zeros(16, 64, dtype=torch.bfloat16)


def transposed(monkeypatch):
    module = with_no_kernel("foundations/matrix_transpose", monkeypatch, run=lambda *_: None)
    return lambda out: module.transpose(torch.ones(16, 32), out=out), torch.zeros(32, 16)


def copied(monkeypatch):
    module = with_no_kernel("hopper/tma_copy", monkeypatch, compiled_copy=lambda *_: lambda *_: None)
    return lambda out: module.copy(torch.ones(16, 32), out), torch.zeros(16, 32)


def restored(monkeypatch):
    module = with_no_kernel("hopper/tma_copy", monkeypatch, compiled_look=lambda *_: lambda *_: None)
    return lambda out: module.restore(torch.ones(16, 32), out), torch.zeros(16, 32)


def streamed(monkeypatch):
    instead = {
        "compiled": lambda *_: lambda *_: None,
        "check_buffer": lambda *_: None,
        "stream_arguments": lambda *_: (),
    }
    module = with_no_kernel("foundations/memory_ceiling", monkeypatch, **instead)
    return lambda y: module.stream_over(torch.ones(2**20), y, module.STREAMS["copy"]), torch.zeros(2**20)


def with_no_kernel(name, monkeypatch, **instead):
    """A recipe on a machine that seems to have a Hopper GPU; `instead`: what launches nothing."""
    module = catalog.load(name)
    for key, value in instead.items():
        monkeypatch.setattr(module, key, value)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=7))
    pretend_device(monkeypatch, multi_processor_count=132)
    return module


WRITERS = {  # functions of recipes that write into a tensor they are given, beside a `matmul` with `out`
    ("hopper/amax_epilogue_gemm", "matmul_amax"): amax_of,
    ("hopper/pdl_chain", "chain"): chained,
    ("foundations/matrix_transpose", "transpose"): transposed,
    ("hopper/tma_copy", "copy"): copied,
    ("hopper/tma_copy", "restore"): restored,
    ("foundations/memory_ceiling", "stream_over"): streamed,
}


@pytest.mark.parametrize(("name", "function"), WRITERS)
def test_writing_into_a_given_tensor_tells_autograd(name, function, monkeypatch):
    call, given = WRITERS[name, function](monkeypatch)
    for _ in range(2):
        assert changes(given, lambda: call(given)) >= 1


def test_all_who_write_into_a_tensor_that_was_given_are_tried():
    """Those that a user calls return it; the others are parts of them."""
    parts = {"run", "usable", "check_out", "check_chain", "by_torch"}
    found = set()
    for recipe in catalog.recipes():
        for key, each in vars(catalog.load(recipe.name)).items():
            own = isinstance(each, FunctionType) and each.__module__ == catalog.load(recipe.name).__name__
            hints = {name: str(hint) for name, hint in each.__annotations__.items()} if own else {}
            if any("Tensor" in hints.get(name, "") and "torch" in hints[name] for name in ("out", "amax", "y")):
                found.add((recipe.name, key))
    assert {each for each in found if each[1] not in parts | {"matmul"}} == set(WRITERS)


# --- threads --------------------------------------------------------------------------------------------------------


def test_all_copies_share_one_reentrant_lock(tmp_path):
    """Files that know nothing of each other find it in one module."""
    (tmp_path / "one.py").write_text(catalog.standalone_source(HALVES[0]))
    (tmp_path / "two.py").write_text(catalog.standalone_source("hopper/tma_copy"))
    said = "import one, two; from one_cute_compile_at_a_time import lock; print(one.COMPILING is two.COMPILING is lock)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout.split() == ["True"]
    assert sys.modules["one_cute_compile_at_a_time"].lock is entry.COMPILING
    with entry.COMPILING, entry.COMPILING:
        assert not _in_a_thread(lambda: entry.COMPILING.acquire(blocking=False))


def _in_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def test_a_kernel_that_threads_ask_for_at_once_is_compiled_once():
    made, kept, ready = [], {}, threading.Barrier(8)

    def make():
        made.append(time.sleep(0.05))
        return "kernel"

    def ask():
        ready.wait()
        return entry.once(kept, ("bfloat16", 8), make)

    found = []
    threads = [threading.Thread(target=lambda: found.append(ask())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["kernel"] * 8 and len(made) == 1


@pytest.mark.parametrize("name", GEMMS)
def test_threads_that_first_call_at_once_compile_one_kernel(name, monkeypatch):
    module, compiled = pretended(name, monkeypatch), []
    compile_for = module.GEMM.compile_for

    def slowly(*which, options):
        compiled.append(time.sleep(0.02))
        return compile_for(*which, options=options)

    monkeypatch.setattr(module.GEMM, "compile_for", slowly)
    given, ready = operands(name), threading.Barrier(8)
    threads = [threading.Thread(target=lambda: (ready.wait(), module.matmul(**given))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(module.launched) == 8 and len(compiled) == 1


def first_compiles(folder, *arguments: str) -> subprocess.CompletedProcess:
    """Three copied recipes, first compiled by 8 threads at once, in a process of their own."""
    return run_beside_copies(folder, FIRST_COMPILES, *arguments)


@pytest.mark.parametrize("again", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_threads_that_compile_copied_recipes_do_not_abort(tmp_path, again):
    done = first_compiles(tmp_path)
    assert (done.returncode, done.stdout.split()) == (0, ["8", "compiled"]), done.stderr[-2000:]


def test_without_the_lock_they_fail(tmp_path):
    """Or the test above would show nothing."""
    done = first_compiles(tmp_path, "unlocked")
    assert done.returncode != 0 or done.stdout.split() != ["8", "compiled"]
    assert ABORTS.search(done.stdout + done.stderr), done.stderr[-2000:]


def test_a_gpu_is_one_of_a_list_or_any_from_one_on(monkeypatch):
    x, every = SimpleNamespace(is_cuda=True, device="cuda:0"), [(7, 5), (8, 0), (9, 0), (10, 0), (10, 3)]
    for gpus, legal in {((9, 0),): every[2:3], ((10, 0), (10, 3)): every[3:], ((8, 0), ...): every[1:]}.items():
        for found in every:
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, found=found: found)
            if found in legal:
                assert entry.check_gpu("x", x, gpus, "TMA") == "sm_{}{}".format(*found)
                continue
            said = f"x: got a GPU of compute capability {found}; needed {gpus[0]}"
            with pytest.raises(ValueError, match=re.escape(said)):
                entry.check_gpu("x", x, gpus, "TMA")


def test_a_list_of_pointers_ends_with_those_that_are_described(monkeypatch):
    """A launch then has no argument for an operand that its kernel lacks."""
    made: list[tuple] = []
    monkeypatch.setattr(entry.cute, "compile", lambda *given, **_: made.append(given))

    def host(pA, further, n):
        raise AssertionError

    pointer = entry.cute.Pointer
    host.__annotations__ = {"pA": pointer, "further": list[(pointer,) * 2], "n": entry.cutlass.Int32}

    half, single = (entry.cutlass.Float16, 16), (entry.cutlass.Float32, 4)
    for described, there in (((half,), 0), ((half, half), 1), ((half, half, single), 2)):
        entry.compile_host(host, "sm_90a", described, ())
        _, first, further, _ = made.pop()
        assert [x.dtype for x in (first, *further)] == [element for element, _ in described]
        assert len(further) == there
