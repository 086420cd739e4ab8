"""What commands write into a terminal: at any width from 40 up, every word that a wide one shows."""

from __future__ import annotations

import errno
import os
import pty
import re
import subprocess
import sys
from collections import Counter

import pytest
import typer

from cookbook.cli.app import app

WIDTHS = (40, 80, 200)
WIDE = 1000  # everything fits
NAME = "ampere/ldmatrix_gemm"
LINES = [
    "--help",
    "list",
    f"show {NAME}",
    "show blackwell/mxfp8_gemm",
    "check primer/layouts",
    f"bench {NAME} --shape 4096,4096,4096",
    "calibrate hopper/tuned_gemm",
    f"copy {NAME} kernel.py",
    f"build {NAME} --arch sm_80 --dtype fp8 -o kernels",
    "new hopper/my_gemm --from no/such",
    "exercise primer/hello_kernel",
    "exercise hello.py",
    "results",
    "doctor",
    "cache list",
    "cache export tuned.json",
    "cache import tuned.json",
    "cache clear",
    "atom --major K --tile 128x64 --arch sm_90",
    "atom --help",
    "swizzle --help",
    "banks --tile 32x32 --access 32x1 --swizzle 5,0,5",
    "banks --tile 32x32 --access 32x1 --pitch 1048577",
    "draw layout --tile 8x32 --access 8x4 -o x.svg",
    "swizzle explain 5 0 5 --unit elements --bits 32",
    "swizzle explain 3 4 24",
    "swizzle design --row 64 --bits 16 --vector 8",
    "swizzle solve --tile 128x64 --bits 16 --access ldmatrix.x4@16x16 --access cp.async16@4x64",
    "swizzle solve --tile 96x80 --bits 16 --access ldmatrix.x4@16x16 --access cp.async16@8x32",
]
EVERY = r"""
import fcntl, shlex, shutil, struct, sys, termios
from pathlib import Path
from cookbook.cli.app import app
from cookbook.recipe import catalog
for width in map(int, sys.argv[1].split(",")):
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    for made in Path.cwd().iterdir():
        shutil.rmtree(made) if made.is_dir() else made.unlink()
    Path("hello.py").write_text(catalog.standalone_source("primer/hello_kernel"))
    print("\n%%%% ", flush=True)
    for line in sys.argv[2:]:
        print("\n#### " + line, flush=True)
        try:
            app(shlex.split(line))
        except SystemExit as end:
            print(f"\n#### exit status {end.code}", flush=True)
"""
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_RULES = re.compile(r"─+")
_HYPHENS = re.compile(r"(?<=\w)-\s*\n\s*(?=\w)")  # help texts wrap behind them


def in_terminal(widths: tuple[int, ...], folder, lines: list[str], progress: bool = False) -> list[str]:
    """What the commands write into a terminal of each width, all in one process and in the same folder.

    progress: stderr goes there too, where a bar is drawn.
    """
    ours, theirs = pty.openpty()
    here = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES", "NO_COLOR")}
    here |= {"TERM": "xterm-256color", "COOKBOOK_CACHE": str(folder / "cache")}
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", EVERY, ",".join(map(str, widths)), *lines],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs if progress else subprocess.DEVNULL,
        cwd=folder,
        env=here,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            some = os.read(ours, 1 << 16)
        except OSError as error:  # Linux says so at the end
            assert error.errno == errno.EIO
            break
        if not some:
            break
        written += some
    os.close(ours)
    assert process.wait() == 0
    return _ESCAPES.sub("", written.decode()).split("\n%%%% ")[1:]


def by_command(written: str) -> dict[str, str]:
    parts = written.split("\n#### ")
    assert "Traceback" not in written
    return {parts[n].partition("\n")[0]: parts[n].partition("\n")[2] + parts[n + 1] for n in range(1, len(parts), 2)}


def words(text: str) -> Counter[str]:
    whole = _HYPHENS.sub("-", _RULES.sub(" ", text))
    return Counter(word.removesuffix(":") for word in whole.split())


def lost(wide: str, narrow: str, width: int) -> list[str]:
    """The words of `wide` that `narrow` has not, or fewer times; a word longer than a line may go on in the next."""
    together = "".join(narrow.split())
    missing = words(wide) - words(narrow)
    return [word for word in missing.elements() if len(word) <= width or word not in together]


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> dict[int, dict[str, str]]:
    """By width and command. In one process: to import, and to read all records, takes most of the time."""
    widths = (WIDE, *WIDTHS)
    found = in_terminal(widths, tmp_path_factory.mktemp("wide") / "here", LINES)
    return dict(zip(widths, map(by_command, found), strict=True))


def test_every_command_is_tried():
    command = typer.main.get_command(app)
    names = set()
    for name, each in command.commands.items():
        names |= {f"{name} {inner}" for inner in getattr(each, "commands", ())} or {name}
    assert {name for name in names if not any(line.startswith(name) for line in LINES)} == set()


@pytest.mark.parametrize("width", WIDTHS)
def test_no_command_loses_a_word_in_a_narrow_terminal(width, written):
    wide, narrow = written[WIDE], written[width]
    assert narrow.keys() == wide.keys() == set(LINES)
    for line, text in narrow.items():
        assert lost(wide[line], text, width) == [], line
        assert "…" not in text or "…" in wide[line], line
        assert len(text.split()) > 2, line  # it says something at all


def test_progress_is_whole_in_a_narrow_terminal(tmp_path):
    line = "check primer/composed_layouts"
    (text,) = in_terminal((40,), tmp_path / "here", [line], progress=True)
    assert "0/4 0:00:0" in text and "composed_layouts" in "".join(text.split()) and "…" not in text
