"""Hostile input at every public function and command: a right answer or one clear error, in bounded time and memory.

The library is tried in processes of their own (`hostile.py`), the command line in this one, and a few commands as a
user runs them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import hostile
import processes
import pytest
import typer
import typer.testing
from hostile_calls import CALLS
from typer.testing import CliRunner

from cookbook import cli
from cookbook.check import workers
from cookbook.measure import bench, calibration
from cookbook.recipe import build
from tools import new

ROOT = Path(__file__).parent.parent
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
AT_LEAST = 600  # calls of the whole suite


# --- the library ------------------------------------------------------------------------------------------------


def test_every_public_function_has_a_valid_call():
    """Found by looking: whoever adds a function adds its call, or this fails."""
    assert hostile.public().keys() == CALLS.keys()


PARTS = sorted({name.split(".")[1] for name in CALLS})


@pytest.mark.parametrize("parts", [PARTS[::2], PARTS[1::2]], ids=" ".join)  # processes: each takes seconds to begin
def test_library(parts):
    """Every argument of every public function of a module, one at a time, in at most 5 s and 1 GiB each."""
    command = [sys.executable, str(ROOT / "tests" / "hostile.py"), *(f"cookbook.{part}." for part in parts)]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    for part, found in json.loads(done.stdout).items():
        assert found["wrong"] == [], "\n".join([f"{len(found['wrong'])} of {found['calls']} calls", *found["wrong"]])
        assert found["slowest"] <= hostile.SECONDS, part
        assert found["calls"] >= 30 * sum(name.startswith(part) for name in CALLS), part


def test_the_judge_is_no_rubber_stamp():
    """What the suite is to find: silence, another form, another name, another answer, another error."""
    one = hostile.Try("f", "rows", "1.5", 1.5, int)
    assert "silent answer" in hostile.judge_answer(one, 1, 1, ())
    assert "silent answer" in hostile.judge_answer(hostile.Try("f", "rows", "-1", -1, int), 1, 1, ())
    assert "another answer" in hostile.judge_answer(hostile.Try("f", "rows", "same as np.int64", 1, int), 2, 1, ())
    assert hostile.judge_answer(one, 1, 1, ("1.5",)) == ""
    names = ["rows", "columns"]
    assert hostile.judge_error(one, TypeError("rows: got 1.5; needed an integer"), names) == ""
    for error in (
        TypeError("columns: got 1.5; needed an integer"),
        ValueError("bad rows"),
        IndexError("rows: got; needed"),
    ):
        assert hostile.judge_error(one, error, names)
    wide = hostile.Try("f", "rows", "7", 7, int)
    assert hostile.judge_error(wide, ValueError("columns: got 3; needed 7 at least"), names) == ""
    assert hostile.judge_error(wide, ValueError("element: got 3; needed 7 at least"), names)


# --- the command line -------------------------------------------------------------------------------------------

NAME = "ampere/ldmatrix_gemm"
VALID = {  # a valid call of every command
    "list": (),
    "show": (NAME,),
    "check": (NAME,),
    "bench": (NAME,),
    "calibrate": ("hopper/tuned_gemm",),
    "copy": (NAME, "{folder}/kernel.py"),
    "build": (NAME, "--arch", "sm_80", "-o", "{folder}/kernels", "--dtype", "bf16", "--force"),
    "cache list": (),
    "cache clear": (),
    "cache export": ("{folder}/tuned.json",),
    "cache import": ("{folder}/tuned.json",),
    "new": ("hopper/my_gemm",),
    "exercise": ("primer/composed_layouts",),
    "results": (),
    "doctor": (),
    "atom": ("--major", "K", "--tile", "128x64"),
    "banks": ("--tile", "32x32", "--access", "32x1"),
    "draw": ("layout", "-o", "{folder}/x.svg", "--tile", "8x8", "--swizzle", "3,2,3", "--access", "8x1", "--force"),
    "swizzle explain": ("3", "4", "3"),
    "swizzle design": ("--row", "64", "--bits", "16", "--vector", "8"),
    "swizzle solve": ("--tile", "8x8", "--access", "1x8", "--access", "8x1"),
}
TOKENS = (
    *("x", "-1", "nan", "9" * 20, "", "8x8x8", "1.5", "x" * 10_000, "4611686018427387904", "0", "65536x65536", "1e9"),
    *(
        "0x0",
        "9" * 5000,
        "1_000",
        "3,60,3",
        "²",
        "-4x8",
        "1048576",
        "a,b,c",
        "True",
        "-1,0,0",
        "\n",
        "99999999999999x1",
    ),
    *("ldmatrix.x9@16x16", "3,4,1000", "1,2", "ld128@", "8x", "7", "0,0,0", "/nonexistent/x.svg", "5,0,-5"),
)
OF_RECIPES = (
    "list",
    "show",
    "check",
    "bench",
    "calibrate",
    "copy",
    "build",
    "new",
    "results",
    "doctor",
)  # tried with a third of them
INTEGERS = re.compile(r"[+-]?[0-9]{1,20}")
LINE = re.compile(r"[^\n]+: got .*; needed [^\n]+\n")


COMMAND = typer.main.get_command(cli.app)


def commands() -> Iterator[tuple[str, object]]:
    for name, command in COMMAND.commands.items():
        inner = getattr(command, "commands", None)
        yield from ((f"{name} {n}", c) for n, c in inner.items()) if inner else [(name, command)]


COMMANDS = dict(commands())


def spoiled(name: str, folder: Path) -> Iterator[tuple[list[str], str, bool]]:
    """(arguments, the token, whether the parameter is an integer) for every parameter of a command."""
    valid = [part.format(folder=folder) for part in VALID[name]]
    command = COMMANDS[name]
    positions = [p for p in command.params if not p.opts[0].startswith("-")]
    for token in TOKENS[:: 3 if name in OF_RECIPES else 1]:
        for param in command.params:
            whole = param.metavar in ("N", "B", "M", "S")  # as the help says it
            if param in positions:
                at = positions.index(param)
                yield [*valid[:at], token, *valid[at + 1 :]], token, whole
            elif not getattr(param, "is_flag", False) and "--help" not in param.opts:
                kept = list(valid)
                for option in param.opts:
                    if option in kept:
                        i = kept.index(option)
                        del kept[i : i + 2]
                yield [*kept, param.opts[0], token], token, whole
    for token in TOKENS[:5]:
        yield [*valid, token], token, False
        yield [*valid, f"--{token}"], token, False


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """What takes long once the arguments are known to be right is left out; nothing but the folder is written to."""
    monkeypatch.setattr(typer.testing, "_get_command", lambda app: COMMAND)  # a runner makes it anew for each call
    skeleton = new.skeleton
    into_folder = lambda *a: {tmp_path / file.name: text for file, text in skeleton(*a).items()}  # noqa: E731
    monkeypatch.setattr(new, "skeleton", into_folder)
    monkeypatch.setattr(workers, "check", lambda *a, **k: [])
    monkeypatch.setattr(bench, "bench", lambda *a, **k: [])
    monkeypatch.setattr(calibration, "measure", lambda *a, **k: {"figures": {}, "changes": {}, "device": "x"})
    monkeypatch.setattr(build, "_compiled", lambda *a: ("kernel", b""))
    monkeypatch.setattr(build, "_linked", lambda *a: b"")
    monkeypatch.setattr(build, "loader", lambda *a: "")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_command_has_a_valid_call():
    assert COMMANDS.keys() == VALID.keys()


@pytest.mark.parametrize("name", VALID)
def test_command(name, quick):
    """Every parameter of a command: an answer, or exit status 2 and one line; no traceback, 5 s of this process."""
    runner, wrong, count = CliRunner(), [], 0
    for arguments, token, whole in spoiled(name, quick):
        begun = time.process_time()
        done = runner.invoke(cli.app, [*name.split(), *arguments])
        seconds, count = time.process_time() - begun, count + 1
        said = f"{name} {' '.join(a[:40] for a in arguments)!r}: "
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            wrong.append(said + f"{type(done.exception).__name__}: {str(done.exception)[:200]}")
        elif done.exit_code not in (0, 1, 2):
            wrong.append(said + f"exit status {done.exit_code}")
        elif done.exit_code == 2 and not LINE.fullmatch(done.stderr):
            wrong.append(said + f"unclear: {done.stderr[:300]!r}")
        elif done.exit_code == 0 and whole and token in arguments and not INTEGERS.fullmatch(token):
            wrong.append(said + "a silent answer")
        if seconds > hostile.SECONDS:
            wrong.append(said + f"took {seconds:.1f} s")
    assert not wrong, "\n".join([f"{len(wrong)} of {count}", *wrong])
    assert count >= 10


PROCESSES = [  # each was a traceback, a wrong answer or took too long
    ("banks --tile 8x8 --access 8x1 --bits 0", 2),
    ("banks --tile 8x8 --access 8x1 --pitch 99999999999999999999", 2),
    ("banks --tile 8x8 --access 8x1 --pitch 4611686018427387904", 2),
    ("banks --tile 8x8 --access 8x1 --banks 1048576", 2),
    ("swizzle explain 3 60 3", 2),
    ("swizzle explain 0 70 0", 2),
    ("swizzle explain 3 4 1000", 2),
    ("swizzle explain 3 4 24", 0),
    ("swizzle design --row 4096", 0),
    ("swizzle solve --tile 8x8 --access 8x1 --banks 268435456", 2),
    ("atom --major K --tile 65536x65536", 2),
    ("nonsense", 2),
]


@pytest.mark.parametrize(("line", "status"), PROCESSES)
def test_process(line, status):
    """As a user runs it: one line on stderr at most."""
    cpu = 4 * int(hostile.SECONDS)  # of this process alone: other tests may share the machine
    done = processes.run("-m", "cookbook.cli", *line.split(), env=ENVIRONMENT, cpu=cpu)
    assert done.returncode == status and "Traceback" not in done.stderr
    assert not done.stderr if status == 0 else LINE.fullmatch(done.stderr)


def test_the_suite_is_large_enough(tmp_path):
    library = sum(1 for name, make in CALLS.items() for _ in hostile.tries(name, hostile.public()[name], make()))
    assert library + sum(1 for name in VALID for _ in spoiled(name, tmp_path)) >= AT_LEAST
