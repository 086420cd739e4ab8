"""Tests of kernels without a GPU: `assert_no_races(gemm, "bf16[256,128]", "bf16[256,128]", "f32[256,256]")`.

Arguments are what the function is called with; words stand for tensors, as in `cookbook check` (docs: Check your own
kernel). A kernel of which not all is followed fails: nothing passes silently.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cookbook.check.kernels import Case, Found, Report
from cookbook.check.kernels import check as _check
from cookbook.check.kernels.judging import BANKS

__all__ = ["Report", "assert_no_bank_conflicts", "assert_no_races", "check"]

ARCH = "sm_90a"


def check(
    function: Callable[..., Any],
    *arguments: Any,
    arch: str = ARCH,
    sizes: Mapping[str, int] | None = None,
    computes: str = "",
    **keywords: Any,
) -> Report:
    """Follow a `@cute.jit` function, and judge it in every order of its warps.

    Args:
        function: it, or an object that is called so.
        *arguments: its arguments; words such as `"bf16[256,128]"` stand for tensors, `"stream"` for a stream.
        arch: the compile target.
        sizes: numbers for extents that are known at launch, by name; others are chosen.
        computes: what it computes, `"c[m,n] = a[m,k] * b[n,k]"` by its parameters' names; "" if that is not said.
        **keywords: keyword arguments of the function.

    Raises:
        ValueError: CuTe does not trace it, or an argument is wrong.
    """
    name = getattr(function, "__name__", type(function).__name__)
    return _check(Case(name, function, arguments, arch, keywords, sizes or {}, computes))


def assert_no_races(function: Callable[..., Any], *arguments: Any, **how: Any) -> Report:
    """Fail on a race, a deadlock, or whatever else breaks a rule, but bank conflicts; arguments as of `check`."""
    return _asserted(check(function, *arguments, **how), lambda one: one.rule != BANKS)


def assert_no_bank_conflicts(function: Callable[..., Any], *arguments: Any, **how: Any) -> Report:
    """Fail on a line whose accesses to shared memory take more wavefronts than need be; arguments as of `check`."""
    return _asserted(check(function, *arguments, **how), lambda one: one.rule == BANKS)


def _asserted(report: Report, counts: Callable[[Found], bool]) -> Report:
    report.found = [one for one in report.found if counts(one)]
    if not report.ok:
        raise AssertionError(str(report))
    return report
