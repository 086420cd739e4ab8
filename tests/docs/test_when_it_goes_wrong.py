"""What the page on errors shows is what each mistake runs into, and each mistake is on the page."""

from __future__ import annotations

import faulthandler
import inspect
import os
import re
import sys
import warnings

import cutlass
import mistakes
import pytest

from cookbook.recipe import catalog

PAGE = (catalog.recipes_root().parent / "docs" / "when-it-goes-wrong.md").read_text(encoding="utf-8")
SHOWN = dict(re.findall(r"<!-- case: (\w+) -->\n\n(?:```text\n(.*?)\n```)?", PAGE, re.S))
pytestmark = pytest.mark.skipif(
    f"nvidia-cutlass-dsl {cutlass.__version__}." not in " ".join(PAGE.split()), reason="the messages of another version"
)


def run_apart(mistake) -> str:
    """What a mistake prints and raises, in a process of its own: some mistakes end it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # no exception may leave this branch: the test runner is above it
        os.close(read)
        os.dup2(write, 1)
        os.dup2(write, 2)
        sys.stdout = sys.stderr = os.fdopen(1, "w", closefd=False)  # instead of what captures a test's
        try:
            faulthandler.disable()  # a mistake may end the process; where it stood in Python is not looked at
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_: print(message)
            mistake()
        except BaseException as error:
            sys.stdout.write(f"{type(error).__name__}: {error}")
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode(errors="replace")
    os.waitpid(child, 0)
    return said


def bare(text: str) -> str:
    """Without colours, frames and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", text).split())


def test_the_page_shows_every_mistake_and_no_other():
    made = {
        name
        for name, function in vars(mistakes).items()
        if inspect.isfunction(function)
        and function.__module__ == mistakes.__name__
        and not name.startswith("_")
        and not inspect.signature(function).parameters
    }
    assert set(SHOWN) == made
    assert len(SHOWN) >= 40


@pytest.mark.parametrize("case", SHOWN)
def test_a_mistake_runs_into_what_the_page_shows(case):
    said = bare(run_apart(getattr(mistakes, case)))
    if SHOWN[case]:
        assert bare(SHOWN[case]) in said
    else:  # the page says that nothing is said
        assert "Error" not in said and "error" not in said
