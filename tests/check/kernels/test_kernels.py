"""Any kernel is asked for by a table, by Python and in passing; what was found is text, JSON and SARIF."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import cutlass
import cutlass.cute as cute
import numpy as np
import pytest

from cookbook import testing
from cookbook.check import kernels
from cookbook.check.kernels import conflicts, tensors, watching
from cookbook.check.kernels.cases import Case, cases_of, traced
from cookbook.simulate.arguments import SMALL, chosen, symbols, value_of
from cookbook.swizzle import Swizzle

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
import own  # noqa: E402


def report_of(function, *arguments, **more) -> kernels.Report:
    return testing.check(function, *arguments, **more)


# --- arguments ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, shape, strides",
    [
        ("f32[64]", (64,), (1,)),
        ("bf16[4,8]", (4, 8), (8, 1)),
        ("bf16[4,8] column", (4, 8), (1, 4)),
        ("f16[4,8,1] (9,1,40)", (4, 8, 1), (9, 1, 40)),
    ],
)
def test_words_stand_for_tensors(words, shape, strides):
    found = tensors.argument(words, {})
    assert (found.shape, found.stride) == (shape, strides)


@pytest.mark.parametrize("words", ["f33[64]", "f32[]", "f32[0]", "f32[4,8] (1)", "bf16[a-b]"])
def test_words_that_say_no_tensor_are_refused(words):
    with pytest.raises(ValueError, match="argument: got"):
        tensors.argument(words, {})


@pytest.mark.parametrize("value", ["cooperative", 3, None, (1, 2)])
def test_what_is_no_tensor_is_handed_on(value):
    assert tensors.argument(value, {}) is value


def test_a_name_is_one_number_in_all_arguments():
    known: tensors.Symbols = {}
    first, second = (tensors.argument(words, known) for words in ("f32[8m,64k]", "f32[n,64k]"))
    assert first.shape[1] is second.shape[1] and first.shape[0] is not second.shape[0]
    with pytest.raises(ValueError, match="needed 64k"):
        tensors.argument("f32[k]", known)


def arguments_of(*words):
    @cute.jit
    def host(a: cute.Tensor, b: cute.Tensor, number: cutlass.Int32):
        own.mirrored(a, number, True).launch(grid=(1, 1, 1), block=(own.THREADS, 1, 1))

    return traced(Case("host", host, words, "sm_90a")).arguments


def test_a_symbol_is_the_smallest_multiple_from_a_limit_on():
    found = arguments_of("f32[m,96k]", "f32[96k,m] column", 7)
    assert chosen(found) == {"m": SMALL, "k": 288}
    assert chosen(found, {"m": 5, "k": 96}) == {"m": 5, "k": 96}
    numbers = {symbol: chosen(found)[name] for symbol, name in symbols(found).items()}
    a, b, number = (value_of(one, numbers) for one in found)
    assert a == ([256, 288], [288, 1]) and b == ([288, 256], [1, 288]) and number == 7
    for sizes, needed in (({"k": 97}, "multiple of 96"), ({"q": 1}, "needed one of m, k"), ({"m": 0}, "positive")):
        with pytest.raises(ValueError, match=needed):
            chosen(found, sizes)


# --- what is found -----------------------------------------------------------------------------------------------


def test_a_race_has_its_lines_and_an_order():
    report = report_of(own.mirror, "f32[64]", 1, False, "stream")
    assert report.status == kernels.FAULT and {one.rule for one in report.found} == {"race"}
    one = report.found[0]
    assert Path(one.at.file).name == Path(one.other.file).name == "own.py"
    assert {one.at.source, one.other.source} == {"sX[tidx] = mX[tidx]", "mX[tidx] = sX[THREADS - 1 - tidx]"}
    assert one.order and one.order[-1].startswith("and not yet: CTA 0 warp")
    assert f"{one.at}: race: " in str(report) and f"against {one.other}" in str(report)


def test_a_right_kernel_says_what_was_looked_at():
    report = report_of(own.mirror, "f32[m]", 1, True, "stream", sizes={"m": 64})
    assert report.ok and report.status == 0 and report.given == "with mX 64:(1), factor 1; chosen: m=64"
    (launched,) = report.launches
    assert (launched.kernel, launched.grid, launched.block, launched.warps) == ("mirrored", (1, 1, 1), (64, 1, 1), 2)
    assert any("every order" in what for what in report.judged)


def test_every_launch_is_followed():
    report = report_of(own.twice, "f32[64]", "f32[64]")
    assert [one.grid for one in report.launches] == [(1, 1, 1), (2, 1, 1)]
    assert {one.rule for one in report.found} == {"race"}


def test_bank_conflicts_are_counted_and_a_reason_allows_them():
    report = report_of(own.transposed, "f32[32]")
    assert [(one.rule, one.at.source.split("  #")[0]) for one in report.found] == [
        ("bank conflict", "sX[tidx, 0] = mX[tidx]"),
        ("bank conflict", "mX[tidx] = sX[tidx, 1]"),
    ]
    assert "1 x st of 4 bytes take 32 wavefronts, at best 1" in report.found[0].text
    assert "has no reason" in report.found[1].text
    assert [one.allowed for one in report.allowed] == ["written once", "the line below is read once"]


def test_a_conflict_says_its_lanes_and_a_layout_without_it():
    one = report_of(own.transposed, "f32[32]").found[0]
    assert "lanes 0, 1, 2, 3, 4, 5, 6, 7, ... ask bank 0 for 32 words" in one.text
    bits, base, shift = map(int, re.findall(r"Swizzle<(\d),(\d),(\d)>", one.instead)[0])
    moved = Swizzle(bits, base, shift)(np.arange(32) * 128)
    assert len(set(moved // 4 % 32)) == 32 and "no access to these bytes has a conflict" in one.instead
    told = str(report_of(own.transposed, "f32[32]"))
    assert f"  instead: {one.instead}" in told


def test_a_layout_that_tma_reads_is_not_exchanged(monkeypatch):
    monkeypatch.setattr(conflicts, "_others", lambda *at: True)
    assert not any(one.instead for one in report_of(own.transposed, "f32[32]").found)


def test_a_hang_says_who_waits_for_whom():
    (one,) = report_of(own.lone, "f32[32]").found
    assert one.rule == "deadlock"
    (waits,) = one.waits
    lines = {line: number for number, line in enumerate(Path(own.__file__).read_text().splitlines(), 1)}
    wait, arrive = (lines[f"        cute.arch.mbarrier_{what}"] for what in ("wait(full, 0)", "arrive(full)"))
    assert f"CTA 0 warp 1 waits in line {wait} of waited, for CTA 0 warp 0, which has ended" == waits and arrive < wait
    assert "who waits for whom" in str(report_of(own.lone, "f32[32]"))


def test_what_depends_on_data_is_not_followed_and_no_pass():
    report = report_of(own.depends, "f32[128]")
    assert report.status == kernels.NOT_FOLLOWED and not report.found
    (one,) = report.not_followed
    assert one.at.source == "if mX[0] > 0.0:" and "depends on data" in one.text and "scf.if" in one.text
    assert "not followed, because " in str(report)
    with pytest.raises(AssertionError, match="not followed"):
        testing.assert_no_races(own.depends, "f32[128]")


def test_assertions_look_at_their_own_rules():
    testing.assert_no_races(own.transposed, "f32[32]")
    with pytest.raises(AssertionError, match="bank conflict"):
        testing.assert_no_bank_conflicts(own.transposed, "f32[32]")
    with pytest.raises(AssertionError, match="race"):
        testing.assert_no_races(own.Mirror(False), "f32[64]", "stream")


MATRICES = "bf16[16,32]", "bf16[8,32]", "f32[16,8]"


@pytest.mark.parametrize(
    "skips, computes, told",
    [
        (0, "c[m,n] = a[m,k] * b[n,k]", ""),
        (1, "c[m,n] = a[m,k] * b[n,k]", "16 of 32 k are not there once"),
        (0, "c[n,m] = a[m,k] * b[n,k]", "needed A[0, k]"),
    ],
)
def test_a_product_that_is_said_is_checked(skips, computes, told):
    report = report_of(own.multiply, *MATRICES, skips, computes=computes)
    assert f"product: {computes}" in report.judged and not report.not_followed
    assert [one.rule for one in report.found] == ["product"] * bool(told)
    for one in report.found:
        assert told in one.text and one.at.source == "cute.autovec_copy(tCrC, tCgC)"


@pytest.mark.parametrize(
    "function, arguments, more, needed",
    [
        (own.mirror, ("f32[64]",), {}, "while it traced"),
        (own.mirror, ("f32[64]", 1, True, "stream"), {"arch": ""}, "arch: got none"),
        (own.mirror, ("f32[64]", 1, True, "stream"), {"computes": "c = a"}, "computes: got 'c = a'"),
        (own.mirror, ("f32[64]", 1, True, "stream"), {"computes": "c[m,n] = a[m,k] * b[n,k]"}, "needed a tensor of mX"),
    ],
)
def test_what_cannot_be_asked_for_is_a_value_error(function, arguments, more, needed):
    with pytest.raises(ValueError, match=needed.replace("[", r"\[")):
        report_of(function, *arguments, **more)


def test_json_and_sarif_hold_the_lines():
    report = report_of(own.transposed, "f32[32]")
    told = json.loads(json.dumps(report.to_json()))
    assert told["status"] == 1 and told["found"][0]["at"]["line"] == report.found[0].at.line
    (run,) = json.loads(json.dumps(kernels.sarif([report])))["runs"]
    places = [each["locations"][0]["physicalLocation"] for each in run["results"]]
    assert places[0]["region"]["startLine"] == report.found[0].at.line
    assert places[0]["artifactLocation"]["uri"].endswith("tests/check/kernels/own.py")
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["bank-conflict"]
    assert [each.get("suppressions", [{}])[0].get("justification") for each in run["results"][2:]] == [
        "written once",
        "the line below is read once",
    ]


# --- tables ------------------------------------------------------------------------------------------------------


def test_a_table_names_functions_and_builders():
    found = cases_of(HERE / "own.py")
    assert [case.name for case in found] == ["waits", "races"]
    assert [kernels.check(case).status for case in found] == [0, kernels.FAULT]


def test_a_table_may_lie_beside_its_file(tmp_path):
    text = (HERE / "own.py").read_text().partition("CHECKS")[0]
    (tmp_path / "apart.py").write_text(text)
    with pytest.raises(kernels.NoTable) as told:
        cases_of(tmp_path / "apart.py")
    lines = str(told.value)
    assert "apart_checks.py" in lines and '"build": lambda: Mirror(...)' in lines
    assert '"arguments": ["bf16[256,256]", 1, ..., "stream"]' in lines  # of mirror
    table = 'import apart\n\nCHECKS = {"one": {"function": apart.twice, "arguments": [], "arch": "sm_90a"}}\n'
    (tmp_path / "apart_checks.py").write_text(table)
    assert [case.name for case in cases_of(tmp_path / "apart.py")] == ["one"]


@pytest.mark.parametrize(
    "table, needed",
    [
        ("[]", "needed a dict"),
        ("{}", "needed a dict"),
        ('{"a": 1}', "needed a dict of function"),
        ('{"a": {"function": f, "shape": 1}}', "got shape; needed a dict of function"),
        ('{"a": {"arch": "sm_90a"}}', "got neither; needed function"),
        ('{"a": {"function": f, "build": f}}', "got both; needed function"),
        ('{"a": {"function": 3}}', "needed a callable"),
    ],
)
def test_a_wrong_table_is_said(tmp_path, table, needed):
    file = tmp_path / "wrong.py"
    file.write_text(f"def f():\n    pass\n\n\nCHECKS = {table}\n")
    with pytest.raises(ValueError, match=needed):
        cases_of(file)


# --- in passing --------------------------------------------------------------------------------------------------


def fake(*extents):
    return cute.runtime.make_fake_compact_tensor(cutlass.Float32, extents)


def test_what_is_compiled_is_checked_in_passing_once(monkeypatch, tmp_path):
    monkeypatch.setenv("COOKBOOK_CACHE", str(tmp_path))
    with watching.watching("sm_90a", dry=True) as seen:
        made = cute.compile(own.mirror, fake(64), 1, True, cute.runtime.make_fake_stream())
        assert made(1, 2) is None  # nothing was lowered
        cute.compile(own.mirror, fake(64), 1, True, cute.runtime.make_fake_stream())
        cute.compile(own.mirror, fake(64), 1, False, cute.runtime.make_fake_stream())
    assert [report.status for report in seen.reports] == [0, kernels.FAULT]
    assert [report.name for report in seen.reports] == ["mirror", "mirror"]
    with watching.watching("sm_90a", dry=True) as again:
        cute.compile(own.mirror, fake(64), 1, True, cute.runtime.make_fake_stream())
        cute.compile(own.mirror, fake(64), 1, False, cute.runtime.make_fake_stream())
    assert again.known == 1 and [report.status for report in again.reports] == [kernels.FAULT]


def test_where_cute_goes_on_it_compiles_what_was_checked(monkeypatch):
    monkeypatch.setenv("COOKBOOK_CACHE", "off")
    options = "--gpu-arch sm_90a"
    with watching.watching(dry=False) as seen:
        made = cute.compile(own.mirror, fake(64), 1, False, cute.runtime.make_fake_stream(), options=options)
    assert [(report.status, report.arch) for report in seen.reports] == [(kernels.FAULT, "sm_90a")]
    assert seen.reports[0].found[0].at.source and type(made).__name__ != "NotRun"


def test_a_script_that_ends_in_an_error_keeps_its_reports(monkeypatch, tmp_path):
    monkeypatch.setenv("COOKBOOK_CACHE", "off")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    script = tmp_path / "script.py"
    text = "from own import *\nimport sys\nfrom cutlass.cute.runtime import *\n"
    text += "cute.compile(Mirror(False), make_fake_compact_tensor(cutlass.Float32, (64,)), make_fake_stream())\n"
    script.write_text(text + "raise OSError(sys.argv[1])\n")
    said: list[str] = []
    found = watching.run(script, ["no GPU"], "sm_90a", said.append)
    assert [report.status for report in found.reports] == [kernels.FAULT]
    (end,) = [line for line in said if line.startswith("script.py")]
    assert end == "script.py ended at script.py:5 after its kernels were compiled with OSError: no GPU"


ASKS_FOR_A_GPU = """
import torch
from own import *
import cuda.bindings.driver as cuda
from cutlass.cute.runtime import from_dlpack

if not torch.cuda.is_available():
    raise RuntimeError("GPU is required to run this example!")
x = torch.ones(64, dtype=torch.float32).to("cuda") + torch.zeros(64, device=torch.device("cuda", 0))
clusters = cutlass.utils.HardwareInfo().get_max_active_clusters(2)
stream = cuda.CUstream(torch.cuda.Stream().cuda_stream)
compiled = cute.compile(mirror, from_dlpack(x.cuda()), clusters, WAITS, stream)
compiled(x, clusters, stream)
torch.cuda.synchronize()
torch.testing.assert_close(torch.empty_like(x, device="cuda").fill_(2.0), x)
"""


@pytest.mark.parametrize("waits, status", [(True, 0), (False, kernels.FAULT)])
def test_a_script_that_asks_for_a_gpu_runs_without(monkeypatch, tmp_path, waits, status):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("COOKBOOK_CACHE", "off")
    script = tmp_path / "example.py"
    script.write_text(ASKS_FOR_A_GPU.replace("WAITS", str(waits)))
    said: list[str] = []
    found = watching.run(script, [], "sm_90a", said.append)
    assert [report.status for report in found.reports] == [status], said
    assert found.reports[0].given.endswith("factor 66")
    assert "no GPU: a pretended one of 132 SMs" in said[0] and "no kernel runs" in said[0]
    assert said[1].startswith("example.py ended at example.py:15 after its kernels were compiled with AssertionError")
    assert not torch.cuda.is_available()
