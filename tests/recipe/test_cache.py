"""The disk cache of compiled kernels: what is kept, by what it is found again, and what goes wrong on disks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from cookbook.check import compiled
from cookbook.recipe import cache, catalog

ROOT = Path(__file__).parents[2]
NAME = "hopper/tma_wgmma_gemm"
ABOUT = {
    "recipe": "track/name",
    "source": "0123456789abcdef",
    "arch": "sm_90a",
    "pointers": "BFloat16 aligned to 16, BFloat16 aligned to 16",
    "configuration": "Config(tile_m=128), 8",
    "dsl": "4.8.1 13.0",
}
MADE = bytes(range(256)) * 100


@pytest.fixture
def disk(monkeypatch, tmp_path):
    monkeypatch.setenv(cache.SETTING, str(tmp_path / "kernels"))
    return tmp_path / "kernels"


def compiling(made=MADE):
    """What compiles, and notes how often."""
    calls = []
    return calls, lambda: calls.append(1) or made


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"COOKBOOK_CACHE": "/a/b"}, "/a/b"),
        ({"COOKBOOK_CACHE": "off", "XDG_CACHE_HOME": "/x"}, None),
        ({"COOKBOOK_CACHE": "", "XDG_CACHE_HOME": "/x"}, "/x/cute-cookbook"),
        ({"COOKBOOK_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/cute-cookbook"),
    ],
)
def test_where(monkeypatch, settings, where):
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert cache.folder() == (Path(where) if where else None)


def test_compiled_once(disk):
    calls, compiled = compiling()
    assert [cache.object_of(ABOUT, compiled) for _ in range(3)] == [MADE] * 3
    (entry,) = cache.entries()
    assert len(calls) == 1 and entry.about == ABOUT and entry.size == entry.path.stat().st_size > len(MADE)
    assert disk.stat().st_mode & 0o077 == 0, "who can write there can run code as the user"


@pytest.mark.parametrize("name", ABOUT)
def test_anything_else_is_another_kernel(disk, name):
    """Another version of the DSL, architecture, configuration or text."""
    calls, compiled = compiling()
    cache.object_of(ABOUT, compiled)
    cache.object_of(ABOUT | {name: "another"}, compiled)
    assert len(calls) == len(cache.entries()) == 2


DAMAGES = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "without its line": lambda content: content.rpartition(b"\n")[0],
    "a bit of the object": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "longer": lambda content: content + b"\n",
    "no JSON": lambda content: content[:-1],
    "a line of another kind": lambda content: content.rpartition(b"\n")[0] + b"\n[1]",
    "another kernel's": lambda content: content.replace(b"track/name", b"track/other"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged(disk, damage):
    """It is compiled again, and the entry is whole afterwards."""
    cache.object_of(ABOUT, compiling()[1])
    (entry,) = cache.entries()
    entry.path.write_bytes(DAMAGES[damage](entry.path.read_bytes()))
    calls, compiled = compiling()
    assert [cache.object_of(ABOUT, compiled) for _ in range(2)] == [MADE] * 2
    assert len(calls) == 1


def test_listed_and_cleared(disk):
    """`clear` takes what it wrote, and half of an entry that a killed process left; nothing else."""
    cache.object_of(ABOUT, compiling()[1])
    half = disk / f"{cache.symbol_of(ABOUT)}.kernel.{'0' * 32}"
    half.write_bytes(MADE)
    (disk / "mine.kernel").write_bytes(b"")
    assert [entry.about for entry in cache.entries()] == [ABOUT, None]
    assert len(cache.clear()) == 2 and cache.entries() == []
    assert [file.name for file in disk.iterdir()] == ["mine.kernel"]


def test_off(disk, monkeypatch):
    monkeypatch.setenv(cache.SETTING, "off")
    calls, compiled = compiling()
    assert [cache.object_of(ABOUT, compiled) for _ in range(2)] == [MADE] * 2
    assert len(calls) == 2 and cache.entries() == cache.clear() == [] and not disk.exists()


def test_a_disk_that_cannot_be_written_to(disk):
    """The kernel is served all the same, and a warning says why the next process will compile it again."""
    disk.write_text("a file")
    with pytest.warns(UserWarning, match=r"COOKBOOK_CACHE: got .*; needed a folder to write to"):
        assert cache.object_of(ABOUT, compiling()[1]) == MADE
    assert cache.entries() == []


PROCESS = """
import sys, time
from pathlib import Path
from cookbook.recipe import cache
number, folder = int(sys.argv[1]), Path(sys.argv[2])
(folder / f"ready{number}").touch()
while len(list(folder.glob("ready*"))) < 8:  # all at once
    time.sleep(0.005)
for turn in range(60):
    about = {"kernel": str(turn % 5)}
    made = (about["kernel"] * 200_000).encode()
    assert cache.object_of(about, lambda: made) == made
    assert all(entry.about for entry in cache.entries() if entry.path.suffix == ".kernel"), "half of one was read"
    if number == 0 and turn % 10 == 9:
        cache.clear()
"""


def test_eight_processes_at_once(disk, tmp_path):
    """They write and read the same kernels while one of them clears: each gets its own, and none sees half of one."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
    commands = [[sys.executable, "-c", PROCESS, str(number), str(tmp_path)] for number in range(8)]
    started = [
        subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        for command in commands
    ]
    assert [process.communicate(timeout=60)[1] for process in started] == [""] * 8
    assert [process.returncode for process in started] == [0] * 8
    assert {entry.about["kernel"] for entry in cache.entries()} <= set("01234")


# --- a recipe -----------------------------------------------------------------------------------------------------


@pytest.fixture
def recipe(disk, monkeypatch):
    """A recipe's module, loaded anew, as the first one that uses the disk."""
    name = "cookbook.recipes." + NAME.replace("/", ".")
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = catalog.load(NAME)
    yield module
    del sys.modules[name]


def compile_for(module, options=cache.TVM_FFI):
    import cutlass

    return module.compile_for("sm_90a", cutlass.BFloat16, options=options)


def test_a_recipe_compiles_once(recipe, monkeypatch):
    import cutlass
    import cutlass.cute as cute
    import tvm_ffi

    assert isinstance(compile_for(recipe), tvm_ffi.Function)
    monkeypatch.setattr(cute, "compile", lambda *a, **k: pytest.fail("it was compiled again"))
    assert isinstance(compile_for(recipe), tvm_ffi.Function)
    (entry,) = cache.entries()
    assert entry.about["recipe"] == NAME and entry.about["arch"] == "sm_90a"
    assert "tile_m=128" in entry.about["configuration"] and entry.about["dsl"].startswith(cutlass.__version__)


@pytest.mark.parametrize("name", [r.name for r in catalog.recipes() if r.targets and r.kind not in ("study", "primer")])
def test_another_process_finds_it_again(disk, monkeypatch, name):
    """No part of what a kernel is kept by belongs to one process, as an address does."""
    recipe, module, known = catalog.find(name), catalog.load(name), []
    if not isinstance(module.compile_host, cache.Cached):
        pytest.skip("its module was loaded by something else than the catalog")

    def noted(self, host, arch, pointers, constants, options):
        known.append(self.about(host, arch, pointers, constants))
        raise InterruptedError

    monkeypatch.setattr(cache.Cached, "object", noted)
    with pytest.raises(InterruptedError):
        module.compile_for(recipe.targets[0], compiled.cutlass_dtype(recipe.dtypes[0]), options=cache.TVM_FFI)
    assert known[0]["configuration"] and not [said for said in known[0].values() if " at 0x" in said]


FRESH = """
import sys
import cutlass
import cookbook
module = cookbook.load(sys.argv[1])
kernel = module.compile_for("sm_90a", cutlass.BFloat16, options="--enable-tvm-ffi")
try:
    kernel(0)
except TypeError as error:
    assert "Expects 6 parameters" in str(error), error
"""


@pytest.mark.slow
def test_eight_processes_compile_at_once(disk):
    """A recipe's kernel in an empty cache: each process has it, and what is left serves the next one."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    started = [subprocess.Popen([sys.executable, "-c", FRESH, NAME], env=environment) for _ in range(8)]
    assert [process.wait(timeout=300) for process in started] == [0] * 8
    (entry,) = cache.entries()
    assert entry.about and entry.about["recipe"] == NAME


def test_what_is_not_kept(recipe, monkeypatch, tmp_path):
    """Other options, a module with a name set anew, an edited file, and while a CUTE_DSL_* variable is set."""
    compiled = []
    monkeypatch.setattr(recipe.compile_host, "compile_host", lambda *a, options="": compiled.append(options))
    compile_for(recipe, "--keep-ptx")
    with monkeypatch.context() as changed:
        changed.setattr(recipe, "smem_layouts", lambda *a: None)
        compile_for(recipe)
    with monkeypatch.context() as changed:
        changed.setenv("CUTE_DSL_LINEINFO", "1")
        compile_for(recipe)
    with monkeypatch.context() as changed:
        changed.setattr(recipe.compile_host, "source", lambda: "edited")
        compile_for(recipe)
    assert compiled == ["--keep-ptx", *[cache.TVM_FFI] * 3] and cache.entries() == []


def test_readers_function_is_not_kept_under_the_name_of_another(monkeypatch, disk):
    module = catalog.load("hopper/fused_epilogue_gemm")
    compiled = []
    monkeypatch.setattr(module.compile_host, "compile_host", lambda *a, options="": compiled.append(options))
    assert module.compile_host.as_loaded()
    monkeypatch.setitem(module.EPILOGUES, "add_bias", lambda x, bias: x - bias)
    module.compile_for("sm_90a", None, module.fused("add_bias"), options=cache.TVM_FFI)
    assert compiled == [cache.TVM_FFI] and cache.entries() == []


def test_the_text_decides(tmp_path):
    """Of a recipe, the cells that make kernels; its lab and its prose do not."""
    text = catalog.find(NAME).file.read_text(encoding="utf-8")
    file = tmp_path / "recipe.py"

    def hashed(source):
        file.write_text(source, encoding="utf-8")
        return catalog.source_hash(SimpleNamespace(file=file))

    assert hashed(text) == catalog.source_hash(catalog.find(NAME))
    assert hashed(text + '\n# %% tags=["lab"]\nprint(1)\n') == hashed(text)
    assert hashed(text.replace("tile_k: int = 64", "tile_k: int = 32")) != hashed(text)


def test_the_command(disk, capsys):
    from typer.testing import CliRunner

    from cookbook.cli import app

    cache.object_of(ABOUT, compiling()[1])
    run = CliRunner().invoke
    listed = run(app, ["cache", "list"])
    assert listed.exit_code == 0 and "track/name (source 01234567, CuTe DSL 4.8.1)" in listed.stdout
    assert "  sm_90a  BFloat16 aligned to 16  Config(tile_m=128), 8" in listed.stdout
    found = json.loads(run(app, ["cache", "list", "--json"]).stdout)
    assert found["folder"] == str(disk) and found["bytes"] == found["kernels"][0]["bytes"] > len(MADE)
    assert json.loads(run(app, ["cache", "clear", "--json"]).stdout)["deleted"] == 1
    assert json.loads(run(app, ["cache", "list", "--json"]).stdout)["kernels"] == []
