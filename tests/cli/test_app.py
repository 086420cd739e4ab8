"""The command line: what it prints, where, with which exit status."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import processes
import pytest
import torch
import typer
from in_threads import Thread
from typer.main import get_command
from typer.testing import CliRunner

from cookbook import cli
from cookbook.check import levels as checking
from cookbook.check import workers
from cookbook.cli import usage
from cookbook.recipe import catalog

NAME = "hopper/tma_wgmma_gemm"
COMMANDS = ("list", "show", "check", "bench", "copy", "results", "doctor")
RUN = (sys.executable, "-m", "cookbook.cli")
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="what a machine without a GPU does")


def call(*arguments: str):
    return CliRunner().invoke(cli.app, arguments)


def process(*arguments: str, **streams: int):
    return processes.run("-m", "cookbook.cli", *arguments, **streams)


def test_list_names_every_recipe_and_imports_nothing_heavy():
    code = (
        "import sys; from cookbook import cli; sys.argv = ['cookbook', 'list']\n"
        "try: cli.main()\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'cutlass', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
    assert all(recipe.name in done.stdout for recipe in catalog.recipes())


# The least that a command of typer which prints a table of rich can be.
LEAST = """
import typer
from rich.console import Console
from rich.table import Table

def command(as_json: bool = False):
    table = Table("recipe")
    table.add_row("one")
    Console().print(table)

typer.run(command)
"""


LIST = "from cookbook import cli; sys.argv = ['cookbook', 'list']; cli.main()"


def packages(program: str) -> set[str]:
    """What a program has imported when it is done, by the first part of each name."""
    at_the_end = "import atexit, sys; atexit.register(lambda: print(*{name.split('.')[0] for name in sys.modules}))\n"
    done = subprocess.run([sys.executable, "-c", at_the_end + program], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_list_is_quick():
    """It imports what the least command of its kind does, itself, what reads front matter, and what a checkout adds:
    importing is its time."""
    more = packages(LIST) - packages(LEAST) - set(sys.stdlib_module_names)
    assert {name for name in more if not name.startswith(("_", "cython"))} == {"cookbook", "tools", "yaml"}


def test_list_json_is_json_and_nothing_else():
    found = json.loads(process("list", "--json").stdout)
    assert [r["name"] for r in found] == [r.name for r in catalog.recipes()]
    assert found[0]["targets"] and found[0]["file"].endswith(".py")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example(command):
    done = call(command, "--help")
    assert done.exit_code == 0 and f"cookbook {command}" in done.stdout and "Example" in done.stdout


def test_the_help_has_each_command_in_one_group():
    named = [name for names in usage.GROUPS.values() for name in names]
    assert sorted(named) == sorted(get_command(cli.app).commands)
    said = call("--help").stdout.splitlines()
    assert [line[:-1] for line in said if line.endswith(":") and not line.startswith(" ")] == ["Options", *usage.GROUPS]
    assert "Commands:" in call("cache", "--help").stdout


def test_show_says_what_a_recipe_is():
    from cookbook.measure import records

    recipe = catalog.find(NAME)
    done = call("show", NAME)
    assert done.exit_code == 0 and NAME in done.stdout and recipe.title in done.stdout
    shown = json.loads(call("show", NAME, "--json").stdout)
    assert shown["code"] == records.code_of(NAME) and isinstance(shown["records"], list)


@pytest.mark.parametrize("command", [("show",), ("check",), ("bench",), ("copy",)])
def test_an_unknown_recipe_is_exit_2_with_a_suggestion(command, tmp_path):
    rest = (str(tmp_path / "x.py"),) if command == ("copy",) else ()
    done = process(*command, "hopper/tma_wgma_gemm", *rest)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"NAME: got 'hopper/tma_wgma_gemm'; needed the name of a recipe: did you mean {NAME}?\n"


def test_a_name_like_none_is_sent_to_the_list():
    done = process("show", "qqqqqqqq")
    assert done.stderr == "NAME: got 'qqqqqqqq'; needed the name of a recipe: `cookbook list` prints them\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show",), "NAME: got none; needed a recipe, such as hopper/tma_wgmma_gemm"),
        (("copy", NAME), "DEST: got none; needed a file NAME.py, or a folder to put it in: FOLDER/"),
        (("atom", "--tile", "8x64"), "--major: got none; needed MAJOR, K or MN: which mode is contiguous"),
        (("draw", "layout"), "--output: got none; needed FILE.svg, where to write it"),
        (("lst",), "COMMAND: got 'lst'; needed one that --help lists: did you mean 'list'?"),
        (("qqqqqqqq",), "COMMAND: got 'qqqqqqqq'; needed one that --help lists"),
    ],
)
def test_what_is_missing_or_mistyped_says_what_is_needed(arguments, said):
    done = process(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"{said}\n")


def test_a_command_of_the_checkout_says_so_where_there_is_none():
    installed = typer.Typer(cls=usage.OneLine)
    for command in ("list", "show"):
        installed.command(command)(lambda: None)
    done = CliRunner().invoke(installed, ["new", "hopper/mine"])
    assert done.stderr == "new: got an installed package; needed a checkout of the repository, which has this command\n"


@pytest.mark.parametrize("command", ["check", "bench"])
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--shape", "1,2"), "got (1, 2); needed M,N,K of 1 or more"),
        (("--shape", "a,b,c"), "got 'a,b,c'; needed M,N,K"),
        (("--shape", "0,8,8"), "got (0, 8, 8); needed M,N,K of 1 or more"),
        (("--shape", "8,8,12"), "K a multiple of 8"),
        (("--dtype", "fp8"), "got 'fp8'; needed one of bf16"),
        (("--dtype", "fp32"), "got 'float32'; needed one of bfloat16"),
        (("--target", "sm_70"), "got 'sm_70'; needed one of sm_90a"),
    ],
)
def test_a_wrong_option_is_exit_2_and_named(command, options, says):
    done = call(command, NAME, *options)
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())


@pytest.mark.parametrize("command", ["check", "bench"])
def test_names_or_all(command):
    assert call(command).exit_code == 2
    assert call(command, NAME, "--all").exit_code == 2


def test_bench_wants_seven_rounds():
    done = call("bench", NAME, "--rounds", "3")
    assert done.exit_code == 2 and "got 3; needed at least 7" in done.stderr


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """What `bench` is asked to time, one entry a call; nothing is timed, and results/ is a folder of the test's."""
    from cookbook.measure import bench as benching
    from cookbook.measure import records

    asked = []

    def bench(name, shapes, dtypes, *, majors, rounds, quack, own, on_progress):
        on_progress(f"timed {name} {shapes[0]}")
        asked.append((*shapes, *dtypes, *majors, rounds, quack, own))
        figures = {"median_ms": 1.0, "min_ms": 1.0, "max_ms": 1.0, "tflops": 1.0, "ratio": 1.0}
        peers = {"torch.matmul": figures}
        return [records.make("timed", name, *dtypes, *shapes, passed=True, figures=figures, peers=peers, device="T")]

    monkeypatch.setattr(checking, "cannot_run", lambda recipe, targets: "")
    monkeypatch.setattr(benching, "bench", bench)
    monkeypatch.setattr(records, "results_root", lambda: tmp_path)
    return asked


def test_bench_all_sizes_without_quack(timed):
    from cookbook.measure import bench as benching

    done = call("bench", NAME, "--all-sizes", "--no-quack", "--dtype", "bf16", "--rounds", "8")
    assert done.exit_code == 0, done.output
    assert timed == [(shape, "bfloat16", "tn", 8, False, True) for shape in benching.ALL_SIZES]
    assert f"[{len(timed)}/{len(timed)}] timed {NAME} {timed[-1][0]}" in done.stderr


def test_bench_times_quack_and_the_usual_sizes_by_default(timed):
    from cookbook.measure import bench as benching

    assert call("bench", NAME, "--dtype", "bf16").exit_code == 0
    assert timed == [(shape, "bfloat16", "tn", 12, True, True) for shape in benching.DEFAULT_SHAPES]


def test_bench_each_dimension_lets_one_grow_at_a_time(timed):
    done = call("bench", NAME, "--each-dimension", "--dtype", "bf16")
    assert done.exit_code == 0, done.output
    shapes = [job[0] for job in timed]
    assert {shape for shape, *_, own in timed if own} == {(4096, 4096, 4096), (16384, 4096, 4096)}  # of --all-sizes
    assert len(shapes) == len(set(shapes)) == 13  # five sizes of each, the cube once
    for dimension in range(3):
        sizes = sorted(
            shape[dimension] for shape in shapes if shape[:dimension] + shape[dimension + 1 :] == (4096, 4096)
        )
        assert sizes == [1024, 2048, 4096, 8192, 16384]
    done = call("bench", NAME, "--all-sizes", "--each-dimension")
    assert done.exit_code == 2 and "--all-sizes: got --each-dimension beside it" in " ".join(done.stderr.split())


def test_all_sizes_and_a_shape_exclude_each_other(timed):
    done = call("bench", NAME, "--all-sizes", "--shape", "64,64,64")
    assert done.exit_code == 2 and not timed
    assert "--all-sizes: got --shape 64,64,64 beside it" in " ".join(done.stderr.split())


def test_a_bench_that_is_cut_short_keeps_what_it_recorded(timed, monkeypatch, tmp_path):
    from cookbook.measure import bench as benching
    from cookbook.measure import records

    whole = benching.bench

    def until_the_third(name, *arguments, **options):
        if len(timed) == 2:
            raise KeyboardInterrupt
        return whole(name, *arguments, **options)

    monkeypatch.setattr(benching, "bench", until_the_third)
    assert call("bench", NAME, "--dtype", "bf16", "--record").exit_code != 0
    assert [tuple(r["shape"]) for r in records.read(tmp_path)] == list(benching.DEFAULT_SHAPES[:2])


def test_shared_records_go_into_a_folder_of_their_own(timed, monkeypatch, tmp_path):
    from cookbook.measure import bench as benching
    from cookbook.measure import records
    from tools.records import freshness

    monkeypatch.setattr(freshness, "stamp", lambda made: ([r | {"kernels": []} for r in made], []))
    done = call("bench", NAME, "--dtype", "bf16", "--share", str(tmp_path / "mine"))
    assert done.exit_code == 0, done.output
    (file,) = (tmp_path / "mine").rglob("*.json")
    assert file == tmp_path / "mine" / "t" / f"{NAME}.json" and str(file) in " ".join(done.stderr.split())
    sent = records.read(tmp_path / "mine")
    assert sorted(tuple(r["shape"]) for r in sent) == sorted(benching.DEFAULT_SHAPES)
    assert all(r["distribution"] and r["versions"]["python"] and r["code"] and r["kernels"] == [] for r in sent)
    assert not records.stale(root=tmp_path / "mine") and list(tmp_path.iterdir()) == [tmp_path / "mine"]


def test_records_are_kept_or_shared_and_not_both(timed, tmp_path):
    done = call("bench", NAME, "--share", str(tmp_path), "--record")
    assert done.exit_code == 2 and "--share: got --record beside it" in " ".join(done.stderr.split())
    (tmp_path / "file").write_text("")
    done = call("bench", NAME, "--share", str(tmp_path / "file"))
    assert done.exit_code == 2 and "a file; needed a folder" in " ".join(done.stderr.split()) and not timed


@needs_no_gpu
def test_bench_without_a_gpu_says_so_and_fails():
    done = process("bench", NAME, "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 1 and said["timed"] == [] and said["not_timed_here"] == {NAME: "no CUDA device here"}


@needs_no_gpu
def test_check_json_has_every_level_with_its_figures():
    done = process("check", NAME, "--shape", "200,333,64", "--dtype", "bf16", "--json")
    said = json.loads(done.stdout)
    assert done.returncode == 0 and said["ok"] is True, done.stdout
    (report,) = said["recipes"]
    levels = {level["level"]: level for level in report["levels"]}
    followed = [checking.PIPELINE, checking.BANKS, checking.COST]
    anywhere = ["layout", "model", checking.PRODUCT, checking.HOST, *followed, "compiled"]
    on_a_gpu = list(checking.LEVELS[3:])
    assert list(levels) == anywhere + on_a_gpu
    assert [levels[name]["status"] for name in anywhere] == ["passed"] * len(anywhere)
    assert levels["model"]["shape"] == [200, 333, 64] and levels["model"]["figures"]["integer_mismatches"] == 0
    compiled = levels["compiled"]["figures"]
    assert compiled["spills"] == 0 and compiled["smem_bytes"] <= compiled["smem_limit"]
    assert all(count > 0 for count in compiled["instructions"].values())
    for name in on_a_gpu:
        assert levels[name]["status"] in ("recorded", "stale", "not checked")
        assert levels[name]["reason"]
    assert done.stderr.count("\n") == 11  # progress, one line a step, none of it on stdout


def test_check_exits_1_when_something_fails(monkeypatch):
    monkeypatch.setattr(workers, "Worker", Thread)
    failed = checking.Level("layout", "failed", "bfloat16", reason="c: not bijective")
    monkeypatch.setattr(checking, "plan", lambda *a: [checking.Step("layout", "bfloat16", lambda: [failed])])
    done = call("check", NAME)
    assert done.exit_code == 1 and "not bijective" in done.stdout and "1 of 1 levels fails: layout" in done.stdout


def test_check_names_what_was_not_checked(monkeypatch):
    unknown = checking.Level("ran", "not checked", "bfloat16", reason="no CUDA device here; nothing recorded")
    monkeypatch.setattr(checking, "plan", lambda *a: [checking.Step("ran", "bfloat16", lambda: [unknown])])
    done = call("check", NAME)
    assert done.exit_code == 0 and "not checked here: ran" in done.stdout


@needs_no_gpu
def test_on_hardware_without_a_gpu_is_refused():
    done = call("check", NAME, "--on-hardware")
    assert done.exit_code == 2 and "no CUDA device here" in done.output
    assert call("check", "--on-hardware").exit_code == 2


def test_on_hardware_takes_what_runs_and_records_it(monkeypatch):
    """As on a B200: every recipe of its own, none of Hopper's, each with all levels."""
    from cookbook.measure import records

    def runs(recipe):
        able = recipe.runs_on_capability(10, 0)
        return ("a B200", "") if able else (None, f"runs on {recipe.runs_on}; this is a B200, sm_100")

    seen, kept, shared = {}, [], []
    record = {"level": "ran", "recipe": NAME}

    def checked(plans, jobs, advance, gpu_jobs, on_level):
        shared.append(gpu_jobs)
        level = checking.Level("ran", checking.PASSED, "bfloat16", record=record)
        for number, _ in enumerate(plans, 1):
            on_level(level)
            assert kept == [record] * number  # at once: a check that is cut short keeps it
        return [checking.Report(plan.recipe, (level,)) for plan in plans]

    monkeypatch.setattr(checking, "gpu_for", runs)
    monkeypatch.setattr(records, "write", lambda made, root: kept.extend(made) or [Path("results/b200.json")])
    monkeypatch.setattr(workers, "check", checked)
    real = workers.planned
    monkeypatch.setattr(workers, "planned", lambda r, *a: seen.update({r.name: a[-1]}) or real(r, *a))
    done = call("check", "--on-hardware", "--gpu-jobs", "3")
    assert done.exit_code == 0 and shared == [3]
    assert done.stderr.count("recorded in") == 1 and "results/b200.json" in done.stderr
    assert "blackwell/two_cta_gemm" in seen and "foundations/matrix_transpose" in seen
    assert NAME not in seen and "blackwell/geforce_gemm" not in seen
    assert all(seen.values()) and len(kept) == len(seen)  # with the tools; each report's record, and none twice
    refused = call("check", NAME, "--on-hardware")
    assert refused.exit_code == 2 and "runs on sm_90" in refused.output


def test_copy_writes_refuses_and_forces(tmp_path):
    dest = tmp_path / "new" / "kernel.py"
    done = call("copy", NAME, str(dest))
    assert done.exit_code == 0 and "from kernel import matmul" in done.stderr and done.stdout == ""
    assert dest.read_text() == catalog.standalone_source(NAME, "kernel")
    dest.write_text("mine")
    refused = call("copy", NAME, str(dest))
    assert refused.exit_code == 2 and "--force" in refused.stderr and dest.read_text() == "mine"
    assert call("copy", NAME, str(dest), "--force").exit_code == 0
    assert "def matmul" in dest.read_text()


def test_copy_adds_exercises_where_there_are_some(tmp_path):
    file = tmp_path / "mine.py"
    done = call("copy", "hopper/tma_wgmma_gemm", str(file), "--exercises")
    assert done.exit_code == 0
    assert f"write the answers, then: cookbook exercise {file}" in " ".join(done.stderr.split())
    assert "def consume_in_one_loop(" in file.read_text() and "raise NotImplementedError" in file.read_text()
    primer = tmp_path / "layouts.py"  # its module has them
    assert call("copy", "primer/layouts", str(primer), "--exercises").exit_code == 0
    assert primer.read_text().count("def padded_columns(") == 1
    refused = call("copy", "hopper/gemv", str(tmp_path / "gemv.py"), "--exercises")
    assert refused.exit_code == 2 and "got hopper/gemv, which has no exercises" in " ".join(refused.stderr.split())


def test_copy_into_a_folder_keeps_the_name(tmp_path):
    assert call("copy", NAME, str(tmp_path)).exit_code == 0
    assert (tmp_path / "tma_wgmma_gemm.py").exists()


def test_doctor_says_what_works_and_the_mend():
    said = json.loads(call("doctor", "--json").stdout)
    found = {d["what"]: d for d in said["diagnoses"]}
    assert said["ok"] and found["CuTe DSL"]["status"] == found["torch"]["status"] == "ok"
    assert all(d["fix"] for d in said["diagnoses"] if d["status"] != "ok")
    table = call("doctor")
    assert table.exit_code == 0 and "CuTe DSL" in table.stdout


def test_results_stale_lists_only_what_changed(monkeypatch):
    from cookbook.measure import records

    fresh = records.make("timed", NAME, "bfloat16", (8, 8, 8), passed=True, figures={}, device="X")
    old = fresh | {"code": "0", "shape": [16, 8, 8]}
    monkeypatch.setattr(records, "read", lambda root=None, name=None: [fresh, old])
    assert [r["shape"] for r in json.loads(call("results", "--stale", "--json").stdout)] == [[16, 8, 8]]
    assert [r["stale"] for r in json.loads(call("results", "--json").stdout)] == [False, True]


def test_all_with_a_target_leaves_out_what_is_not_made_for_it(monkeypatch):
    seen = []
    monkeypatch.setattr(checking, "plan", lambda recipe, *rest: seen.append((recipe.name, rest[2])) or [])
    done = call("check", "--all", "--target", "sm_80")
    assert done.exit_code == 0 and f"{NAME}: left out: not made for sm_80" in done.stderr
    assert ("ampere/ldmatrix_gemm", ("sm_80",)) in seen and NAME not in dict(seen)
    assert call("check", "--all", "--target", "sm_75").exit_code == 2


def test_version_and_python_m_cookbook():
    import cookbook

    done = call("--version")
    assert done.exit_code == 0 and done.stdout == f"cookbook {cookbook.__version__}\n"
    run = [sys.executable, "-m", "cookbook", "--version"]
    assert subprocess.run(run, capture_output=True, text=True, check=True).stdout == done.stdout


WRITERS = [("list",), ("list", "--json"), ("show", NAME), ("--help",)]
WRITERS += [(*words, "--tile", "32x32", "--access", "32x1") for words in (("banks",), ("swizzle", "solve"))]
WRITERS += [pytest.param(words, marks=pytest.mark.slow) for words in (("results",), ("results", "--json"), ("doctor",))]


@pytest.mark.parametrize("command", WRITERS, ids=" ".join)
def test_a_closed_pipe_changes_nothing_a_full_disk_is_one_line(command):
    """Neither is a fault that was found, which exit status 1 says. All write by the same streams."""
    read, write = os.pipe()
    os.close(read)
    stopped = process(*command, stdout=write)
    os.close(write)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    with open("/dev/full", "w") as full:
        done = process(*command, stdout=full.fileno())
    assert done.returncode == 2
    assert done.stderr == "stdout: got No space left on device; needed a file that can be written\n"


def test_a_reader_of_messages_that_stops_changes_nothing(tmp_path):
    """`cookbook ... 2>&1 | head -1`, and stdout that the shell has closed."""
    read, write = os.pipe()
    os.close(read)
    assert process("copy", NAME, str(tmp_path / "mine.py"), stdout=write, stderr=write).returncode == 0
    os.close(write)
    assert "def matmul" in (tmp_path / "mine.py").read_text()
    closed = subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *RUN, "list"], capture_output=True, check=False)
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_ctrl_c_in_check_is_quiet():
    command, pipes = [*RUN, "check", "ampere/first_gemm", "--jobs", "2"], {"stdout": -1, "stderr": -1, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as begun:
        steps = [begun.stderr.readline() for _ in range(2)]
        os.killpg(begun.pid, signal.SIGINT)  # as a terminal does: its workers get it too
        out, said = begun.communicate(timeout=60)
    assert all("ampere/first_gemm" in step for step in steps)
    lines = [line for line in said.splitlines() if not line.startswith("[")]  # [3/9]: progress
    assert begun.returncode == 130 and out == "" and lines in ([], ["Aborted."])  # as typer has it


@pytest.mark.parametrize(
    ("dest", "says"),
    [
        ("2gemm.py", "got 2gemm.py; needed a name that `import` takes"),
        ("my-gemm.py", "got my-gemm.py; needed a name that `import` takes"),
        ("class.py", "got class.py; needed a name that `import` takes"),
        ("torch.py", "got torch.py, which hides the module torch; needed a name of its own"),
        ("numpy.py", "got numpy.py, which hides the module numpy; needed a name of its own"),
        ("operator.py", "got operator.py, which hides the module operator; needed a name of its own"),
        ("newdir", "got newdir; needed a file NAME.py, or a folder: newdir/"),
        ("my_gemm.ipynb", "got my_gemm.ipynb; needed a file NAME.py"),
    ],
)
def test_copy_writes_nothing_that_cannot_be_imported(dest, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("copy", NAME, dest)
    assert done.exit_code == 2 and done.stderr.startswith(f"DEST: {says}") and not list(tmp_path.iterdir())


def test_copy_makes_a_folder_that_ends_in_a_slash(tmp_path):
    done = call("copy", NAME, f"{tmp_path}/newdir/")
    assert done.exit_code == 0 and (tmp_path / "newdir" / "tma_wgmma_gemm.py").is_file()


@pytest.mark.parametrize("name", ["aten::mm", "aten::my_own", "prims::mm", "cute_cookbook::matmul"])
def test_an_operator_is_of_a_library_of_one_s_own(name, tmp_path):
    done = call("copy", NAME, str(tmp_path / "mine.py"), "--torch-op", name)
    assert done.exit_code == 2 and not list(tmp_path.iterdir())
    assert (
        done.stderr
        == f"--torch-op: got '{name}', of a library that there is; needed one of your own, as mylib::matmul\n"
    )
    wrong = call("copy", NAME, str(tmp_path / "mine.py"), "--torch-op", "class::mm")
    assert wrong.exit_code == 2 and "got 'class::mm'; needed LIBRARY::OPERATOR" in wrong.stderr


def test_draw_writes_over_nothing_unasked(tmp_path):
    file = tmp_path / "mine.svg"
    file.write_text("mine")
    command = ("draw", "layout", "--tile", "8x8", "-o", str(file))
    refused = call(*command)
    assert refused.exit_code == 2 and "which exists; needed a new file, or --force" in refused.stderr
    assert file.read_text() == "mine"
    assert call(*command, "--force").exit_code == 0 and "<svg" in file.read_text()


@pytest.mark.parametrize("command", [("banks",), ("draw", "access", "-o", "x.svg"), ("swizzle", "solve")])
def test_an_access_that_is_no_part_of_a_tile_names_the_option(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for access, tile, bits in (("33x1", "32x32", "32"), ("ldmatrix.x4@16x16", "8x8", "16")):
        done = call(*command, "--tile", tile, "--access", access, "--bits", bits)
        assert done.exit_code == 2 and done.stderr.startswith(f"--tile: got {tile}; needed "), done.stderr


@pytest.mark.parametrize("command", [("check",), ("bench",), ("show",), ("copy",), ("build",), ("calibrate",)])
def test_a_file_where_a_recipe_is_wanted_is_told_what_takes_it(command, tmp_path):
    rest = {"copy": (f"{tmp_path}/",), "build": ("--arch", "sm_90a", "-o", str(tmp_path))}.get(command[0], ())
    notebook = call(*command, "tma_wgmma_gemm.ipynb", *rest)
    assert notebook.exit_code == 2 and "a notebook checks itself, by cookbook.lab.check_cells" in notebook.stderr
    if command != ("check",):
        file = call(*command, "my_gemm.py", *rest)
        assert file.exit_code == 2 and "`cookbook check` and `cookbook exercise` take a file" in file.stderr
