"""`check` takes a recipe's name, a notebook's module or a copied file, and says which code it looked at."""

from __future__ import annotations

import re
import shutil
import sys
import types
from dataclasses import replace
from subprocess import CompletedProcess

import dummy_records
import processes
import pytest
from edits import In
from typer.testing import CliRunner

from cookbook import cli
from cookbook.check import levels as checking
from cookbook.check import pipeline, subjects, workers
from cookbook.check.workers import ANYWHERE
from cookbook.products import gemm
from cookbook.recipe import catalog, imports

NAME = "ampere/ldmatrix_gemm"
BROKEN = In("smem_atom").replace("cute.make_swizzle(_bits, 4, 3)", "cute.make_swizzle(0, 4, 3)")
FEW = {"shapes": [(72, 40, 136)], "dtypes": ["float16"], "targets": ["sm_80"]}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A copy as `cookbook copy` writes it, and one with its swizzle gone."""
    folder, text = tmp_path_factory.mktemp("copies"), catalog.standalone_source(NAME)
    made = {"my_gemm.py": text, "broken.py": BROKEN.of(text), "bare.py": "x = 1\n"}
    for name, source in made.items():
        (folder / name).write_text(source)
    return folder


@pytest.fixture(scope="module")
def of_broken(files):
    return checking.check(subjects.load_file(files / "broken.py"), **FEW)


def test_a_copy_is_the_recipes_code_and_says_what_was_edited(files):
    assert subjects.of_file(files / "my_gemm.py").said == f"my_gemm.py: the code of {NAME}"
    broken = subjects.of_file(files / "broken.py")
    assert broken.said == f"broken.py: smem_atom differs from {NAME}" == broken.changed
    assert catalog.find(NAME).said == f"{NAME} as packaged"
    own = subjects.of_file(catalog.find("hopper/tma_copy").file, "hopper/tma_copy")  # a recipe's file itself: with lab
    assert own.differing == ()


def test_an_edit_of_an_imported_function_is_found_in_the_copy(tmp_path):
    """The page imports what uses `smem_atom`; in its copy the function is the reader's."""
    name = "ampere/pipelined_gemm"
    brought = [group for group in imports.groups(catalog.find(name).file.read_text()) if "smem_atom" in group.names]
    assert [group.recipe for group in brought] == [NAME]
    (tmp_path / "edited.py").write_text(BROKEN.of(catalog.standalone_source(name)))
    subject = subjects.of_file(tmp_path / "edited.py", name)
    assert subject.said == f"edited.py: smem_atom differs from {name}"
    found = subject.product.layouts(subject.module, "float16", subject.module.CONFIG)
    assert any("32 wavefronts each (ideal 4)" in each.detail for each in found if not each.ok)


def test_comments_docstrings_and_new_names_are_no_difference(files):
    text = (files / "my_gemm.py").read_text() + "\n\nEXTRA = 3  # of the reader's own\n"
    changed = text.replace("# K-major", "# something else").replace("def smem_atom(", "# a remark\ndef smem_atom(")
    (files / "remarks.py").write_text(changed)
    assert subjects.of_file(files / "remarks.py").differing == ()


def test_check_takes_a_module_and_looks_at_it(of_broken):
    by_level = {level.level: level for level in of_broken.levels}
    assert not of_broken.ok and of_broken.checked.startswith("broken.py: smem_atom differs")
    assert "s2r_a.wavefronts: 128 ldmatrix take 32 wavefronts each (ideal 4)" in by_level["layout"].reason
    assert {by_level[level].status for level in ("ran", "timed", "counted", "sanitized")} == {"not checked"}
    assert "no record" in by_level["ran"].reason


def test_what_a_notebook_defines_last_counts(files):
    """As IPython keeps it: `In` holds the cells in the order in which they ran."""
    text = catalog.without_lab(catalog.find(NAME).file.read_text())
    module = types.ModuleType("__main__")
    vars(module).update(vars(catalog.load(NAME)), get_ipython=None, In=["", text, "this is no Python"])
    assert subjects.find(module, NAME).said == f"the cells above: the code of {NAME}"
    module.In.append("def smem_atom(dtype, contiguous):\n    return None\n")
    assert subjects.find(module, NAME).differing == ("smem_atom",)
    module.In.append(subjects.definitions(text)["smem_atom"])
    assert subjects.find(module, NAME).differing == ()


@pytest.mark.parametrize(
    ("what", "recipe", "error", "says"),
    [
        (7, "", TypeError, "what: got int; needed a recipe's name or a module"),
        (types.ModuleType("bare"), NAME, ValueError, "what: got bare, a module without a file"),
        (catalog, "", ValueError, "recipe: got none; needed the name of the recipe that cookbook.recipe.catalog"),
        ("ampere/none", "", catalog.UnknownRecipe, "name: got 'ampere/none'; needed the name of a recipe"),
    ],
)
def test_what_is_no_subject_is_named(what, recipe, error, says):
    with pytest.raises(error, match=says):
        checking.check(what, recipe=recipe)


def test_the_command_line_checks_a_file(files, of_broken, monkeypatch):
    def known(plans, *how):
        assert [plan.recipe.said for plan in plans] == [of_broken.checked]
        return [of_broken]

    few = ["--shape", "72,40,136", "--dtype", "f16", "--target", "sm_80"]
    done = CliRunner().invoke(cli.app, ["check", str(files / "my_gemm.py"), *few])
    assert (
        done.exit_code == 0 and f"my_gemm.py: the code of {NAME}: all that could be checked here holds" in done.stdout
    )
    monkeypatch.setattr(workers, "check", known)
    done = CliRunner().invoke(cli.app, ["check", str(files / "broken.py"), *few])
    ran = sum(level.status in ("passed", "failed") for level in of_broken.levels)
    said = f"broken.py: smem_atom differs from {NAME}: 2 of {ran} levels fail: layout, banks"
    assert done.exit_code == 1 and said in done.stdout
    done = CliRunner().invoke(cli.app, ["check", str(files / "bare.py")])
    assert done.exit_code == 2 and "no @cute.jit function is defined" in done.output
    done = CliRunner().invoke(cli.app, ["check", str(files / "none.py")])
    assert done.exit_code == 2 and "a file that exists" in done.output


def explored(*arguments: str) -> CompletedProcess:
    return processes.run("-m", "cookbook.check.pipeline", *arguments, cwd=catalog.recipes_root().parent)


def test_a_kernel_without_waits_does_not_read_like_a_pass(files):
    mine = files / "my_gemm.py"
    waits = re.compile(r"^(\s+)cute\.arch\.(cp_async_wait_group|cp_async_commit_group|sync_threads)\(.*$", re.MULTILINE)
    (files / "bare_of_waits.py").write_text(waits.sub(r"\1pass", mine.read_text()))
    done = explored(str(files / "bare_of_waits.py"), "--arch", "sm_80", "--programs")
    assert done.returncode == 2 and "nothing was looked at: the kernel has no barriers" in done.stdout


def test_a_copy_with_mbarriers_is_explored(tmp_path):
    (tmp_path / "my.py").write_text(catalog.standalone_source("hopper/tma_wgmma_gemm"))
    done = explored(str(tmp_path / "my.py"), "--arch", "sm_90a")
    assert done.returncode == 0 and "8 mbarriers" in done.stdout and "nothing" not in done.stdout
    assert pipeline.is_pipelined(catalog.find("hopper/tma_wgmma_gemm"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bare.py", "--arch", "sm_90a"], "which defines no gemm and no compile_for; needed a GEMM"),
        (["my_gemm.py"], "--arch: got none; needed sm_90a or the like"),
        (["none.py", "--arch", "sm_90a"], "a file that exists"),
    ],
)
def test_what_cannot_be_explored_is_one_line(files, arguments, says):
    done = explored(str(files / arguments[0]), *arguments[1:])
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "edit", "failed"),
    [
        (
            NAME,
            In("mainloop").replace("cute.arch.cp_async_wait_group(_ - 2)", "cute.arch.cp_async_wait_group(_ - 1)", 2),
            {"pipeline"},
        ),
        pytest.param(
            NAME,
            In("make_load").replace("_[0, _, 0, 0][0] < _.shape[0]", "_[0, _, 0, 0][0] <= _.shape[0]"),
            {"product"},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "hopper/tma_wgmma_gemm",
            In("kernel")
            .where("store(..., _mC.shape, _, _)")
            .replace("cute.local_tile(_mC, _, _tile)", "cute.local_tile(_mC, _, (0, 0))"),
            {"product"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=["Ampere's waits", "a guard", "a coordinate"],
)
def test_what_the_pages_say_is_read_on_a_gpu_only(name, edit, failed, tmp_path):
    """docs/checking.md says which faults pass wherever there is no GPU. Once a level finds more, it says less."""
    text = catalog.standalone_source(name)
    (tmp_path / "wrong.py").write_text(edit.of(text))
    recipe = subjects.of_file(tmp_path / "wrong.py")
    wanted = checking.chosen(recipe, [(72, 40, 136)], recipe.dtypes[:1], recipe.targets[:1])
    levels = [x for step in checking.plan(recipe, *wanted) if step.level in ANYWHERE for x in checking.run_step(step)]
    assert recipe.differing and {level.level for level in levels if level.status != "passed"} == failed
    said = " ".join((catalog.recipes_root().parent / "docs" / "checking.md").read_text().split())
    assert "**The kernel's values are looked at on a GPU only.**" in said


@pytest.mark.parametrize("changed", [False, True])
def test_on_a_gpu_the_module_itself_runs_without_a_record(files, monkeypatch, changed):
    """With stand-ins for the GPU. Records speak of the packaged code: changed code is neither timed nor counted."""
    ran, timed = [], []
    monkeypatch.setattr(checking, "gpu_for", lambda recipe: ("NVIDIA X", ""))
    monkeypatch.setattr(gemm.Gemm, "cases", lambda self, recipe, module, *rest: ran.append(module) or [])
    monkeypatch.setattr(gemm.Gemm, "record", lambda self, recipe, *rest: dummy_records.record(recipe.name))
    monkeypatch.setattr(gemm.ran, "summary", lambda cases: {})
    monkeypatch.setattr(gemm.Gemm, "bench", lambda self, recipe, options: timed.append(recipe) or [])
    recipe = subjects.of_file(files / ("broken.py" if changed else "my_gemm.py"))
    (level,) = checking.gpu_levels(recipe, "ran", "float16")
    assert ran == [recipe.module] and level.status == "passed" and level.record is None
    levels = checking.gpu_levels(recipe, "timed", "float16")
    assert timed == ([] if changed else [recipe])
    assert [level.status for level in levels] == (["not checked"] if changed else [])
    if changed:
        (counted,) = checking.gpu_levels(recipe, "counted", "float16", tools=True)
        assert counted.reason == f"measured of packaged recipes only; no record: {recipe.said}"


def test_a_file_goes_to_workers_and_a_module_without_one_stays(files):
    recipe = subjects.of_file(files / "my_gemm.py")
    plan = workers.planned(recipe, *checking.chosen(recipe, (), (), ()), False)
    assert len(workers.pieces(plan)) > workers.WORTH and workers.shared_pieces(plan) == []
    assert {piece.file for piece in workers.pieces(plan)} == {(files / "my_gemm.py").resolve()}
    of_cells = plan._replace(recipe=replace(recipe, loaded_from=None))
    assert workers.pieces(of_cells) == workers.shared_pieces(of_cells) == []


# What does not load, and what is said of it after "got FILE, whose ".
UNLOADABLE = {
    "leaves": (b"\nimport sys\nsys.exit(0)\n", "line 5 raises SystemExit: 0"),
    "no_python": (b"\ndef f(:\n", "line 4 raises SyntaxError: invalid syntax"),
    "imports": (b"import no_such_module\n", "line 3 raises ModuleNotFoundError: No module named 'no_such_module'"),
    "raises": (b"def f():\n    return 1 / 0\n\nf()\n", "line 4 raises ZeroDivisionError: division by zero"),
    "latin": (b"x = '\xe9'\n", "line 3 raises UnicodeDecodeError: 'utf-8' codec can't decode byte 0xe9"),
    "marked": (b"", "line 1 raises SyntaxError: invalid non-printable character U+FEFF"),
    "stops": (b"raise KeyError\n", "line 3 raises KeyError; needed"),
    "loops": (b"def f(): f()\n\nf()\n", "line 3 raises RecursionError: maximum recursion depth"),
}
HEAD = b"# recipe ampere/first_gemm\nimport os\n"


@pytest.mark.parametrize("how", UNLOADABLE)
def test_a_file_that_does_not_load_is_one_line_and_exit_2(how, tmp_path, capsys, monkeypatch):
    from cookbook.check.pipeline.__main__ import main

    code, says = UNLOADABLE[how]
    file = tmp_path / f"{how}.py"
    file.write_bytes(b"\xef\xbb\xbf" * (how == "marked") + HEAD + code)
    monkeypatch.chdir(tmp_path)
    for command in (["check", file.name, "no_such_recipe", "--json"], ["exercise", file.name]):
        done = CliRunner().invoke(cli.app, command)
        assert done.exit_code == 2 and done.stdout == "" and done.stderr.count("\n") == 1, done.output
        assert done.stderr.startswith(f"NAME: got {file.name}, whose {says}")
        assert done.stderr.endswith("; needed a file that Python loads\n")
    monkeypatch.setattr(sys, "argv", ["pipeline", file.name, "--arch", "sm_80"])
    with pytest.raises(SystemExit) as left:
        main()
    said = capsys.readouterr()
    assert left.value.code == 2 and said.out == "" and f"what: got {file.name}, whose {says}" in said.err


@pytest.mark.parametrize("command", [("check", "{}"), ("bench", "{}"), ("build", "{}", "--arch", "sm_80", "-o", "x")])
def test_a_packaged_recipe_that_does_not_load_is_the_same(command, tmp_path):
    """In a checkout a recipe is a file that someone edits. A process: its workers must see it too."""
    root = tmp_path / "recipes"
    shutil.copytree(catalog.recipes_root(), root)
    file = root / "ampere" / "first_gemm.py"
    text = file.read_text(encoding="utf-8").replace("\nimport cutlass\n", "\nraise SystemExit(0)\n", 1)
    file.write_text(text, encoding="utf-8")
    program = (
        "import sys\nfrom pathlib import Path\nfrom cookbook.recipe import catalog\n"
        f"catalog.recipes_root = lambda: Path({str(root)!r})\n"
        "from cookbook import cli\n"
        "if __name__ == '__main__':\n    cli.main()\n"
    )
    (tmp_path / "program.py").write_text(program)
    words = [word.format("ampere/first_gemm") for word in command]
    done = processes.run(tmp_path / "program.py", *words, cwd=tmp_path)
    line = text[: text.index("raise SystemExit")].count("\n") + 1
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and done.stdout == "" and "Traceback" not in done.stderr, done.stderr
    assert last == f"NAME: got {file}, whose line {line} raises SystemExit: 0; needed a file that Python loads"


def test_a_module_beside_a_file_loads_and_prints_to_stderr(tmp_path, capsys):
    (tmp_path / "found_beside_it.py").write_text("ANSWER = 42\n")
    (tmp_path / "asks.py").write_text("print('hello')\nfrom found_beside_it import ANSWER\n")
    assert subjects.load_file(tmp_path / "asks.py").ANSWER == 42
    said = capsys.readouterr()
    assert said.out == "" and said.err == "hello\n"


def test_too_many_stages_are_said_first_as_missing_bytes(tmp_path):
    """Else the first that is said is what follows: an address that no descriptor has."""
    source, file = catalog.standalone_source("hopper/tma_wgmma_gemm"), tmp_path / "deep.py"
    assert source.count("stages: int = 4") == 1
    file.write_text(source.replace("stages: int = 4", "stages: int = 8"))
    (level,) = checking.layout_levels(subjects.of_file(file), "bfloat16", ("sm_90a",))
    assert (level.status, level.reason) == ("failed", "smem: 394240 bytes; at most 232448 on sm_90a")
