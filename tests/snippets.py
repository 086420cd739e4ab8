"""Snippets of CuTe-DSL that a page or a command prints, compiled as they are pasted."""

from __future__ import annotations

import importlib.util
from pathlib import Path

CALLED = """

@cute.jit
def launch():
    kernel().launch(grid=[1, 1, 1], block=[1, 1, 1])


@cute.kernel
def kernel():
    {call}
"""


def compiles(source: str, path: Path, call: str = "") -> bool:
    """Whether a file of this source becomes machine code for sm_90a.

    Args:
        call: what a kernel does with it; "" where the source has a kernel.
    """
    import cutlass.cute as cute

    path.write_text(source + (CALLED.format(call=call) if call else ""))  # CuTe reads the source from a file
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cute.compile(module.launch, options=f"--gpu-arch sm_90a --keep-ptx --dump-dir {path.parent}")
    ptx = [found.read_text() for found in path.parent.glob("*.ptx")]
    return any(".entry" in text for text in ptx)
