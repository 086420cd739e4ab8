"""Records follow the machine code: what leaves them current, what makes them stale, and what renews them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from renaming import another_constant, changed_in, renamed, with_another_host, with_other_words, without_a_barrier
from typer.testing import CliRunner

from cookbook.check import reports
from cookbook.cli import app
from cookbook.measure import records
from cookbook.recipe import catalog
from tools.probes import bound
from tools.records import device_code, freshness, suites
from tools.records.freshness import Kernel

GEMM = "hopper/tma_wgmma_gemm"
ONE_A_TRACK = {  # cheap to compile
    "foundations/xor_swizzle": Kernel("foundations/xor_swizzle", "sm_90a"),
    "ampere/ldmatrix_gemm": Kernel("ampere/ldmatrix_gemm", "sm_90a", "bfloat16", vec=8),
    "hopper/tma_wgmma_gemm": Kernel("hopper/tma_wgmma_gemm", "sm_90a", "bfloat16", vec=8),
    "blackwell/tma_tcgen05_gemm": Kernel("blackwell/tma_tcgen05_gemm", "sm_100a", "bfloat16", vec=8),
}


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """A copy of the recipes that can be edited: `edit(name, how)`, how from text to text, or None to leave it."""
    root, real = tmp_path / "recipes", catalog.recipes_root()
    monkeypatch.setattr(catalog, "recipes_root", lambda: root)
    for file in real.glob("*/*.py"):
        copy = root / file.relative_to(real)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text())

    def edit(name, how):
        text = (real / f"{name}.py").read_text()
        edited = how(catalog.without_lab(text))
        if edited is not None:
            header = "\n".join(["# ---", *(f"# {line}".rstrip() for line in catalog.front_matter(text)), "# ---"])
            (root / f"{name}.py").write_text(f"{header}\n\n# %%\n{edited}\n")
            sys.modules.pop("cookbook_recipe_" + name.replace("/", "_"), None)
        return edited

    yield edit
    for name in [name for name in sys.modules if name.startswith(("cookbook_recipe_", "cookbook.recipes."))]:
        if str(root) in str(sys.modules[name].__file__):
            del sys.modules[name]


def names() -> list[str]:
    return [recipe.name for recipe in catalog.recipes()]


def stale(measured: list[records.Record]) -> set[str]:
    """The recipes with stale records. Records of the same code are asked about once: each reads the recipe's text."""
    of_code = {json.dumps([record["recipe"], record.get("code"), record.get("of")]): record for record in measured}
    return {record["recipe"] for record in of_code.values() if records.is_stale(record)}


# --- the fast hash ------------------------------------------------------------------------------------------


def test_names_words_and_host_code_leave_every_record_current(recipes):
    before, measured = {name: device_code.device_hash(name) for name in names()}, records.read()
    assert len(measured) > 300 and stale(measured) == set()
    timed = [record for record in measured if records.has_host_times(record["figures"])]
    fresh = [record | {"host": device_code.host_hash(record["recipe"])} for record in timed]  # as if timed just now
    assert fresh and not any(map(records.host_is_stale, fresh))
    for how in (renamed, with_other_words, with_another_host):
        for name in names():
            edited = recipes(name, how)
            assert edited != catalog.without_lab((Path(__file__).parents[3] / f"recipes/{name}.py").read_text())
        assert {name for name in before if device_code.device_hash(name) != before[name]} == set(), how.__name__
        assert stale(measured) == set()
        hosts = [record for record in fresh if records.host_is_stale(record)]
        assert hosts == (fresh if how is with_another_host else [])


@pytest.mark.parametrize("change", [another_constant, without_a_barrier])
def test_a_changed_kernel_makes_only_its_records_stale(recipes, change):
    tried, measured = 0, records.read()
    for name in names():
        of = {r["recipe"] for r in measured if name in (r["recipe"], *r.get("of", {}))}
        text = (catalog.recipes_root() / f"{name}.py").read_text()
        for function in ("kernel", "mainloop", "consume", "store", "multiply_tile", "transpose_tile"):
            if f"def {function}(" not in text:
                continue
            edited = recipes(name, lambda source, f=function: changed_in(source, f, change))
            if edited is not None:
                assert stale(measured) == of, (name, function)
                tried += 1
                (catalog.recipes_root() / f"{name}.py").write_text(text)
    assert tried > 40 and stale(measured) == set()


# --- the kernels of a record --------------------------------------------------------------------------------


def recorded(name=GEMM, level="timed", shape=(1024, 1024, 1024), dtype="bfloat16", **more):
    made = records.make(level, name, dtype, shape, passed=True, figures={}, device="X", **more)
    return made | {"target": "sm_90a"}


def test_kernels_of_a_record():
    assert freshness.kernels_of(recorded()) == [Kernel(GEMM, "sm_90a", "bfloat16", vec=8)]
    assert [k.vec for k in freshness.kernels_of(recorded(shape=(64, 333, 64)))] == [1]
    assert [k.vec for k in freshness.kernels_of(recorded(level="ran", shape=None))] == [8, 4, 2, 1]
    tuned = freshness.kernels_of(recorded("hopper/tuned_gemm"))
    variants = catalog.load("hopper/tuned_gemm").VARIANTS
    assert {k.variant for k in tuned} == set(variants) and len(tuned) == 2 * len(variants)
    fused = freshness.kernels_of(recorded("hopper/fused_epilogue_gemm"))  # its host never sets gpc_aware
    assert {k.changes for k in fused} == {()}
    beside = freshness.kernels_of(recorded("hopper/split_k_gemm", of=("hopper/tuned_gemm",)))
    assert set(tuned) < set(beside) and {k.recipe for k in beside} == {"hopper/split_k_gemm", "hopper/tuned_gemm"}
    (majors,) = {k.majors for k in freshness.kernels_of(recorded("ampere/majors_gemm", majors="nt"))}
    assert majors == "nt"
    study = freshness.kernels_of(recorded("foundations/thread_block_swizzle", of=(GEMM,)))
    assert [dict(k.changes) for k in study] == list(
        catalog.load("foundations/thread_block_swizzle").EXPERIMENT.configs.values()
    )
    assert freshness.kernels_of(recorded() | {"target": None}) == []


def test_what_a_record_names_is_what_its_recipe_may_launch(monkeypatch):
    """Every record of this repository names the kernels that it would be given today, but for variants that came after
    it: of these it says nothing, and `cookbook check` says so."""
    monkeypatch.setattr(freshness, "_probes", [])
    freshness.use_probes(freshness.Probes(bound.launches, bound.compile_launch, bound.model_hash))
    for record in records.read():
        held, today = {Kernel.from_json(kernel) for kernel in record["kernels"]}, set(freshness.kernels_of(record))
        assert held <= today, (record["recipe"], record["level"])
        name, known = record["recipe"], record["recipe"] not in suites.SUITES
        added = reports.added_since(catalog.find(name), record) if known else ()
        assert {kernel.variant for kernel in today - held} == {*added} - {""}


def test_variants_that_came_after_a_record_are_named():
    recipe = catalog.find("hopper/decode_gemm")
    found = next(r for r in records.read() if r["recipe"] == recipe.name and r["level"] == "ran")
    assert reports.added_since(recipe, found) == ()
    last = next(k["variant"] for k in found["kernels"][::-1])
    older = found | {"kernels": [k for k in found["kernels"] if k["variant"] != last]}
    assert reports.added_since(recipe, older) == (last,)
    assert reports.added_since(recipe, found | {"kernels": []}) == ()


def test_a_kernel_is_read_back_as_it_was_written():
    for kernel in (Kernel(GEMM, "sm_90a", vec=8), Kernel("a/b", "sm_80", "float16", "nt", "x y", 4, (("a", False),))):
        assert Kernel.from_json(json.loads(json.dumps(kernel.to_json())) | {"ptx": "1"}) == kernel
    assert str(kernel) == "a/b sm_80 float16 nt x y vec=4 a=False"


# --- PTX ----------------------------------------------------------------------------------------------------

PTX = """//
// Generated by {who}
.version 8.8
.target sm_90a
.file 1 "{who}.py"
\t// .globl\t{name}
.visible .entry {name}(
\t.param .b32 {name}_param_0
)
{{
\t.loc 1 {who}
\tld.param.b32 \t%r1, [{name}_param_0];  // {who}
\t{op} %r1, %r1, 1;
}}
\t.section .debug_str {{
\t.b8 {who}
\t}}
"""


def test_normal_ptx_keeps_instructions_alone():
    first = freshness.normal_ptx(PTX.format(who="1", name="kernel_a_0", op="add.s32"))
    assert first == freshness.normal_ptx(PTX.format(who="2", name="kernel_b$1", op="add.s32"))
    assert first != freshness.normal_ptx(PTX.format(who="1", name="kernel_a_0", op="sub.s32"))
    assert first.splitlines()[:3] == [".target sm_90a", ".visible .entry kernel0(", ".param .b32 kernel0_param_0"]
    assert "8.8" not in first and "debug" not in first and "ld.param.b32 %r1, [kernel0_param_0];" in first


def test_normal_launch_keeps_what_is_launched():
    def launch(name, grid, how="eq"):
        return (
            f'llvm.mlir.global internal constant @cubin("{name}")\n'
            f'%1 = llvm.mlir.constant("{name}\\00") : !llvm.array<{len(name)} x i8>\n'
            f'%2 = llvm.icmp "{how}" %0, %1\nllvm.call @{name}({grid})\nllvm.call @_cudaLaunch(@{name})'
        )

    first = freshness.normal_launch(launch("a", 1))
    assert first == freshness.normal_launch(launch("another", 1))
    assert len({first, freshness.normal_launch(launch("a", 2)), freshness.normal_launch(launch("a", 1, "ne"))}) == 3


def codes() -> dict[str, freshness.Code]:
    found = {name: freshness.code(kernel) for name, kernel in ONE_A_TRACK.items()}
    assert not any(made.error for made in found.values()), found
    return found


ELSEWHERE = """
import sys
from pathlib import Path
from tools.records import freshness
from cookbook.recipe import catalog
from test_freshness import codes
catalog.recipes_root = lambda: Path(sys.argv[1])
print(codes())
"""


def test_hashes_are_those_of_another_process_folder_and_text(recipes):
    """Other names and words too: one recipe a track compiles to the same PTX and the same launch, to the bit."""
    here = codes()
    for name in ONE_A_TRACK:
        recipes(name, lambda source: with_other_words(renamed(source, seed=1)))
    home = Path(__file__).parents[3]
    where = {
        "PYTHONHASHSEED": "7",
        "PYTHONPATH": os.pathsep.join([str(home), str(home / "tests"), str(Path(__file__).parent)]),
    }
    run = [sys.executable, "-c", ELSEWHERE, str(catalog.recipes_root())]
    done = subprocess.run(run, env=os.environ | where, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == str(here), done.stderr


def test_the_hashes_do_not_hold_the_name_of_the_file(recipes):
    edited = catalog.recipes_root() / "foundations" / "another_name.py"
    edited.write_text((catalog.recipes_root() / "foundations/xor_swizzle.py").read_text())
    kernel = Kernel("foundations/another_name", "sm_90a")
    assert freshness.code(kernel) == freshness.code(ONE_A_TRACK["foundations/xor_swizzle"])


# --- exact and restamp --------------------------------------------------------------------------------------

STUDY = "foundations/xor_swizzle"


@pytest.fixture
def stamped(recipes, tmp_path, monkeypatch):
    """A record of a study that compiles in no time, with the hashes of its kernels, in a results/ of its own."""
    monkeypatch.setattr(records, "results_root", lambda: tmp_path / "results")
    (made,), refused = freshness.stamp([recorded(STUDY, "counted", None, "float32")], jobs=1)
    assert refused == [] and len(made["kernels"]) == 1
    records.write([made])
    return made


def call(*words):
    return CliRunner().invoke(app, ["results", *words])


def test_restamp_renews_what_compiles_to_the_same(recipes, stamped):
    assert call("--exact", "--jobs", "1").exit_code == 0
    recipes(STUDY, lambda source: source.replace("transpose_kernel", "turned_kernel"))
    assert [r["recipe"] for r in records.stale()] == [STUDY]
    done = call("--exact", "--json", "--jobs", "1")
    (said,) = json.loads(done.stdout)
    assert done.exit_code == 0 and said["status"] == "current" and "[1/1]" in done.stderr
    done = call("--restamp", "--json", "--jobs", "1")
    assert done.exit_code == 0 and "0 were current, 1 renewed, 0 stamped, 0 refused" in done.stderr
    assert json.loads(done.stdout) == {"current": 0, "renewed": 1, "stamped": 0, "refused": []}
    assert records.read() == [stamped | {"code": records.code_of(STUDY)}] and records.stale() == []
    assert "1 were current, 0 renewed" in call("--restamp").stderr


def test_restamp_refuses_what_compiles_to_something_else(recipes, stamped):
    assert recipes(STUDY, lambda source: changed_in(source, "transpose_kernel", another_constant)) is not None
    before = records.read()
    done = call("--exact", "--jobs", "1")
    assert done.exit_code == 1 and "1 differs" in done.stderr and "differs" in done.stdout
    done = call("--restamp", "--json", "--jobs", "1")
    (refused,) = json.loads(done.stdout)["refused"]
    assert done.exit_code == 1 and "1 refused" in done.stderr and "another" in refused["why"]
    assert records.read() == before and len(records.stale()) == 1
    recipes(STUDY, lambda source: source + "\n\ndef compile_for(arch, options=''):\n    raise OSError('gone')\n")
    (verdict,) = freshness.compare(before, jobs=1)
    assert verdict.status == freshness.DIFFERS and "OSError: gone" in verdict.why


def test_another_compiler_is_said_and_refused(recipes, stamped):
    old = stamped | {"versions": stamped["versions"] | {"nvidia-cutlass-dsl": "1.2.3"}, "code": "0"}
    records.write([old])
    done = call("--exact", "--json", "--jobs", "1")
    (said,) = json.loads(done.stdout)
    assert done.exit_code == 0 and said["status"] == "not compared" and "1 not compared" in done.stderr
    assert "the record is of 1.2.3" in said["why"]
    assert call("--restamp").exit_code == 1 and records.read() == [old]


def test_restamp_stamps_what_was_just_measured(recipes, stamped):
    bare = {key: value for key, value in stamped.items() if key != "kernels"}
    records.write([bare])
    assert freshness.compare([bare])[0].why == "the record names no kernels"
    done = freshness.restamp(records.read(), jobs=1)
    assert len(done.stamped) == 1 and records.read() == [stamped]
    records.write([bare | {"code": "0"}])  # stale: no one knows what it was of
    done = freshness.restamp(records.read(), jobs=1)
    assert [v.why for v in done.refused] == ["the record names no kernels"]


def test_what_cannot_be_asked_for_is_refused():
    done = call("--exact", "--stale")
    assert done.exit_code == 2 and "one at most" in done.output
    with pytest.raises(ValueError, match="jobs: got 0; needed 1 or more"):
        freshness.compile_all([], 0)


def test_stale_is_said_at_once():
    """Nothing is compiled, and neither torch nor CuTe is imported."""
    imported = "print({*sys.modules} & {'torch', 'cutlass'})"
    program = f"import sys; from cookbook.measure import records; records.stale(); {imported}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "set()", done.stderr
