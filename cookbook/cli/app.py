"""The `cookbook` command: list, show, check, bench, calibrate, copy, results, doctor; other files add more.

Results go to stdout, progress and messages to stderr. Exit status: 0 when all that could be checked here
holds, 1 when something does not, 2 when the command line is wrong, a file does not load or results cannot be written,
130 after Ctrl-C.
"""

from __future__ import annotations

import keyword
import os
import sys
from collections.abc import Callable
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import typer

from cookbook.cli import exercise, kernels, layouts, ship
from cookbook.cli.console import NotWritten, open_streams
from cookbook.cli.console import say as _say
from cookbook.cli.console import show as _print
from cookbook.cli.console import show_json as _print_json
from cookbook.cli.usage import DTYPES, WRONG, Json, OneLine, of_library, whole
from cookbook.recipe import catalog
from cookbook.recipe.folders import tool

app = typer.Typer(
    name="cookbook",
    cls=OneLine,
    no_args_is_help=True,
    add_completion=False,
    help="CuTe-DSL kernels to read, check, time and copy.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


MOST_JOBS, MOST_ROUNDS = 1024, 100_000


def _say_version(asked: bool) -> None:
    if asked:
        from cookbook import __version__

        _print(f"cookbook {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    pass


def _shape(text: str) -> tuple[int, ...]:
    """`"200,333,64"` -> (200, 333, 64); anything but two or three integers is a wrong command line."""
    try:
        sizes = tuple(whole(part) for part in text.replace("x", ",").split(","))
    except typer.BadParameter:
        sizes = ()
    if len(sizes) not in (2, 3):
        needed = "M,N,K: three integers such as 200,333,64, or two, M,N, for a transpose"
        raise typer.BadParameter(f"--shape: got {text!r}; needed {needed}")
    return sizes


def _dtype(text: str) -> str:
    if text not in {**DTYPES, **dict.fromkeys(DTYPES.values())}:
        raise typer.BadParameter(f"--dtype: got {text!r}; needed one of {', '.join(DTYPES)}")
    return DTYPES.get(text, text)


Name = Annotated[str, typer.Argument(metavar="NAME", help="A recipe, such as hopper/tma_wgmma_gemm.")]
Names = Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Recipes; see `cookbook list`.")]
Everything = Annotated[bool, typer.Option("--all", help="Every recipe.")]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", metavar="M,N,K", help="A problem size; M,N of a transpose. Repeatable.")
]
Dtypes = Annotated[list[str] | None, typer.Option("--dtype", metavar="DTYPE", help="bf16, f16 or fp32. Repeatable.")]
Targets = Annotated[
    list[str] | None,
    typer.Option("--target", metavar="ARCH", help="A compile target, as sm_90a. Repeatable."),
]
Majors = Annotated[
    list[str] | None,
    typer.Option("--major", metavar="MAJORS", help="Operands that lie like this, as tn or nt. Repeatable."),
]
Record = Annotated[bool, typer.Option("--record", help="Write what was measured into results/.")]


@app.command("list", epilog="Example: cookbook list --json")
def list_(as_json: Json = False) -> None:
    """List the recipes."""
    found = catalog.recipes()
    if as_json:
        _print_json([_recipe_json(recipe) for recipe in found])
        return
    from cookbook.cli import tables

    _print(tables.of_recipes(found))


@app.command(epilog="Example: cookbook show hopper/tma_wgmma_gemm")
def show(name: Name, as_json: Json = False) -> None:
    """Show what a recipe is, and what was measured of it."""
    from cookbook.measure import records

    recipe = catalog.find(name)
    code = records.code_of(recipe.name)
    measured = [record for record in records.read() if record["recipe"] == recipe.name]
    if as_json:
        _print_json(_recipe_json(recipe) | {"code": code, "records": _marked(measured)})
        return
    from cookbook.cli import tables

    _print(tables.of_recipe(recipe, code))
    _print(tables.of_records(measured, records.is_stale) if measured else "nothing measured yet")


@app.command(
    cls=kernels.RunsTheRest,
    epilog="Examples: cookbook check hopper/tma_wgmma_gemm --shape 200,333,64    cookbook check my_gemm.py    "
    "cookbook check --run script.py",
)
def check(
    names: Names = None,
    everything: Everything = False,
    shapes: Shapes = None,
    dtypes: Dtypes = None,
    targets: Targets = None,
    majors: Majors = None,
    tools: Annotated[
        bool, typer.Option("--tools", help="On a GPU also under ncu and compute-sanitizer: minutes.")
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            parser=whole,
            metavar="N",
            help="Processes for what needs no GPU. Default: one a CPU, 4 at most.",
            show_default=False,
        ),
    ] = None,
    gpu_jobs: Annotated[
        int,
        typer.Option(
            parser=whole, metavar="N", help="Processes that share the GPU at what is not timed; one a CPU is well."
        ),
    ] = 1,
    on_hardware: Annotated[
        bool,
        typer.Option(
            "--on-hardware",
            help="All levels on this GPU, --tools and --record in one. With no NAME, every recipe that it runs.",
        ),
    ] = False,
    record: Record = False,
    details: Annotated[
        bool, typer.Option("--details", help="What each level found, by dtype and shape, not a line a level.")
    ] = False,
    run: Annotated[
        bool, typer.Option("--run", help="NAME is a script, run with all that follows; its kernels are checked.")
    ] = False,
    pattern: Annotated[
        str, typer.Option("-k", metavar="TEXT", help="Of a file with kernels: cases whose names have TEXT in them.")
    ] = "",
    sarif: Annotated[
        Path | None, typer.Option("--sarif", metavar="FILE", help="Also write what was found of kernels as SARIF.")
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(
            "--timeline",
            metavar="PLACE",
            help="Also draw the orders that lead to faults of kernels: the first to a file .svg, or all to a folder.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check recipes, copies of them, or kernels of your own: NAME may be a file such as my_gemm.py.

    With no GPU: layouts, the data path simulated through them (model), the kernel itself followed to C for small
    problems (product), its barriers in every order (pipeline), compiled code. Values are computed on a GPU only
    (ran), or recorded of one. Of any other kernel a file's table CHECKS says what to check: races, deadlocks, bounds
    and bank conflicts. Exit status: 0 none, 1 some, 2 could not ask, 3 not all was followed.
    """
    from cookbook.check import workers

    wants = kernels.Wanted(as_json, sarif, timeline)
    if run:
        raise typer.Exit(kernels.run_script(names or (), targets or (), wants))
    if names and all(map(_is_kernel_file, names)):
        other = {"--shape": shapes, "--dtype": dtypes, "--major": majors, "--tools": tools, "--record": record}
        _refuse_beside("a file with kernels", other | {"--all": everything, "--on-hardware": on_hardware})
        raise typer.Exit(kernels.check_files(names, targets or (), pattern, wants))
    _refuse_beside("recipes", {"-k": pattern, "--sarif": sarif, "--timeline": timeline})
    _check_jobs(jobs=jobs, gpu_jobs=gpu_jobs)
    wanted = _for_this_gpu(names) if on_hardware else _subjects(names, everything)
    tools, record = tools or on_hardware, record or on_hardware
    chosen = _chosen(wanted, shapes, dtypes, targets, everything, majors)
    plans = [workers.planned(recipe, *arguments, tools) for recipe, arguments in chosen]
    recording = _Recording(record)
    with _progress(sum(len(plan.steps) for plan in plans)) as advance:
        reports = workers.check(plans, jobs, advance, gpu_jobs, lambda level: recording.keep(level.record))
    recording.say()
    _show_reports(reports, as_json, details)
    raise typer.Exit(0 if all(report.ok for report in reports) else 1)


def _is_kernel_file(name: str) -> bool:
    """Return whether a name is a Python file's that is no copy of a recipe."""
    from cookbook.check import subjects

    return name.endswith(".py") and not subjects.is_copy(Path(name))


def _refuse_beside(what: str, given: dict[str, Any]) -> None:
    """Options that mean nothing for what is checked."""
    if wrong := next((option for option, value in given.items() if value), None):
        raise typer.BadParameter(f"{wrong}: got {what} beside it; needed none of that")


def _check_jobs(**given: int | None) -> None:
    for option, count in given.items():
        if count is not None and not 1 <= count <= MOST_JOBS:
            raise typer.BadParameter(f"--{option.replace('_', '-')}: got {count}; needed 1 to {MOST_JOBS} processes")


def _subjects(names: list[str] | None, everything: bool) -> list[catalog.Recipe]:
    """The recipes wanted for `check`; of a file's name, the recipe that the file is a copy of, with its code."""
    from cookbook.check import subjects

    if everything or not any(name.endswith(".py") for name in names or ()):
        return _wanted(names, everything, "check")
    try:
        return [subjects.of_file(Path(n)) if n.endswith(".py") else catalog.find(n) for n in names or ()]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _for_this_gpu(names: list[str] | None) -> list[catalog.Recipe]:
    """The named recipes, all of which this GPU must run; without names, every recipe with a kernel that it runs."""
    from cookbook.check import levels as checking

    asked = [catalog.find(name) for name in names] if names else catalog.recipes()
    asked = [recipe for recipe in asked if names or recipe.runs_on != catalog.ANYWHERE]
    reasons = {recipe.name: checking.gpu_for(recipe)[1] for recipe in asked}
    able = [recipe for recipe in asked if not reasons[recipe.name]]
    if not able or (names and len(able) < len(asked)):
        why = next(f"{name}: {reason}" for name, reason in reasons.items() if reason)
        raise typer.BadParameter(f"--on-hardware: got {why}; needed a GPU that runs every recipe named")
    return able


def _show_reports(reports: list[Any], as_json: bool, details: bool) -> None:
    if as_json:
        _print_json({"ok": all(r.ok for r in reports), "recipes": [r.to_json() for r in reports]})
        return
    from cookbook.cli import tables

    _print(tables.of_reports(reports) if details else tables.in_short(reports))
    for report in reports:
        _print(tables.verdict(report))


@app.command(
    epilog="Examples: cookbook bench hopper/tma_wgmma_gemm --shape 4096,4096,4096 --dtype bf16 --record    "
    "cookbook bench hopper/tuned_gemm --all-sizes --dtype bf16 --record"
)
def bench(
    names: Names = None,
    everything: Everything = False,
    shapes: Shapes = None,
    dtypes: Dtypes = None,
    targets: Targets = None,
    majors: Majors = None,
    all_sizes: Annotated[
        bool, typer.Option("--all-sizes", help="GEMMs at ten sizes: cubes of 512 to 16384, tall, wide, ragged, skinny.")
    ] = False,
    each_dimension: Annotated[
        bool, typer.Option("--each-dimension", help="GEMMs, M, N and K one at a time from 1024 to 16384; no variants.")
    ] = False,
    no_quack: Annotated[
        bool, typer.Option("--no-quack", help="Leave QuACK out: it tunes itself for some 15 s at every size.")
    ] = False,
    regret: Annotated[
        bool, typer.Option("--regret", help="What cookbook.ops loses by its choice of a kernel, at a hundred sizes.")
    ] = False,
    unseen: Annotated[
        int | None,
        typer.Option(
            "--unseen", parser=whole, metavar="N", help="With --regret: at products that are drawn by this number."
        ),
    ] = None,
    threefold: Annotated[
        bool, typer.Option("--threefold", help="At the power limit, at equal clock, and in joules; needs --shape.")
    ] = False,
    calls: Annotated[bool, typer.Option("--calls", help="What a call of cookbook.ops costs the host.")] = False,
    rounds: Annotated[int, typer.Option(parser=whole, metavar="N", help="Interleaved rounds; at least 7.")] = 12,
    record: Record = False,
    share: Annotated[
        Path | None, typer.Option("--share", metavar="FOLDER", help="Write the records there instead, to send them in.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Time recipes against their peers (torch, QuACK, a copy), interleaved, on this GPU."""
    from cookbook.measure import bench as benching
    from cookbook.measure import records
    from cookbook.measure.contest import MIN_ROUNDS

    if not MIN_ROUNDS <= rounds <= MOST_ROUNDS:
        raise typer.BadParameter(f"--rounds: got {rounds}; needed at least {MIN_ROUNDS}, {MOST_ROUNDS} at most")
    if regret or calls:
        other = names or shapes or targets or majors or (dtypes if calls else None)
        _bench_operator(regret, calls, dtypes or ["bf16"], rounds, record, as_json, other, unseen)
    if unseen is not None:
        raise typer.BadParameter("--unseen: got no --regret beside it; needed both")
    if threefold:
        if not shapes:
            raise typer.BadParameter("--threefold: got no --shape beside it; needed one or more")
        chosen = _chosen(_to_time(names, everything), shapes, dtypes, targets, everything, majors)
        raise typer.Exit(
            _of_checkout("--threefold").threefold([each[:3] for each in _bench_jobs(chosen, {}, None)], record, as_json)
        )
    asked = ["--all-sizes"] * all_sizes + ["--each-dimension"] * each_dimension
    asked += [f"--shape {shapes[0]}"] if shapes else []
    if len(asked) > 1:
        raise typer.BadParameter(f"{asked[0]}: got {asked[1]} beside it; needed one of the two")
    sizes = benching.all_sizes if all_sizes else benching.each_dimension if each_dimension else None
    made: list[Any] = []
    skipped: dict[str, str] = {}
    chosen = _chosen(_to_time(names, everything), shapes, dtypes, targets, everything, majors)
    jobs = _bench_jobs(chosen, skipped, sizes)
    how, recording = {"rounds": rounds, "quack": not no_quack}, _Recording(record, _shared(share, record))
    with _progress(len(jobs)) as advance:
        for name, shape, dtype, which in jobs:
            own = not each_dimension or shape in benching.ALL_SIZES  # of these the tables show the variants
            new = benching.bench(name, [shape], [dtype], majors=[which], own=own, on_progress=advance, **how)
            recording.keep(*new)
            made += new
    recording.say()
    levels = ("timed", records.CEILING)
    recorded = [r for r in records.read() if r["recipe"] in skipped and r["level"] in levels]
    _show_bench(made, recorded, skipped, as_json)
    raise typer.Exit(1 if skipped else 0)


def _shared(folder: Path | None, record: bool) -> Path | None:
    """The folder that records are written to for sending them in; a wrong one is a wrong command line."""
    if folder and record:
        raise typer.BadParameter("--share: got --record beside it; needed one of the two")
    if folder and folder.exists() and not folder.is_dir():
        raise typer.BadParameter(f"--share: got {str(folder)!r}, a file; needed a folder")
    return folder


def _bench_operator(
    regret: bool,
    calls: bool,
    dtypes: list[str],
    rounds: int,
    record: bool,
    as_json: bool,
    other: Any,
    unseen: int | None,
) -> None:
    """`bench --regret` or `--calls`, which have sizes of their own."""
    given = "--regret" if regret else "--calls"
    if regret and calls:
        raise typer.BadParameter("--regret: got --calls beside it; needed one of the two")
    if other:
        raise typer.BadParameter(f"{given}: got {other[0]} beside it; needed none of that")
    commands = _of_checkout(given)
    if calls:
        raise typer.Exit(commands.calls(record, as_json))
    if len(dtypes) > 1:
        raise typer.BadParameter(f"--dtype: got {', '.join(dtypes)}; needed one of them")
    if unseen is not None:
        if dtypes != ["bf16"]:
            raise typer.BadParameter(f"--unseen: got --dtype {dtypes[0]} beside it; needed bf16, or none")
        raise typer.Exit(commands.unseen(unseen, rounds, record, as_json, _progress))
    raise typer.Exit(commands.regret(_dtype(dtypes[0]), rounds, record, as_json, _progress))


def _of_checkout(option: str) -> Any:
    """The commands of those who maintain records, for an option that is theirs."""
    if commands := tool("commands"):
        return commands
    raise typer.BadParameter(f"{option}: got an installed package; needed a checkout of the repository")


def _to_time(names: list[str] | None, everything: bool) -> list[catalog.Recipe]:
    """The recipes wanted for `bench`: most studies have nothing to time."""
    wanted = _wanted(names, everything, "bench")
    studies = [recipe.name for recipe in wanted if not recipe.product.is_benched(recipe)]
    if studies and not everything:
        raise typer.BadParameter(f"NAME: got {studies[0]}; needed a recipe with something to time")
    for recipe in wanted if not everything else ():
        catalog.load(recipe.name)  # where nothing can be timed, too: one that does not load is said
    return [recipe for recipe in wanted if recipe.name not in studies]


def _bench_jobs(
    chosen: list[tuple[catalog.Recipe, Any]], skipped: dict[str, str], sizes: Callable[..., Any] | None = None
) -> list[Any]:
    """Return what to time: (recipe, shape, dtype, majors). What cannot run here goes into `skipped` with the reason.

    Args:
        sizes: the shapes of a recipe and majors, where no shapes were asked for; `default_shapes` if left out.
    """
    from cookbook.check import levels as checking
    from cookbook.measure import bench as benching

    jobs = []
    for recipe, wanted in chosen:
        if reason := checking.cannot_run(recipe, wanted.targets) or recipe.product.unmeasured(recipe):
            skipped[recipe.name] = reason
            continue
        if not wanted.dtypes:  # it has sizes of its own
            jobs += [(recipe.name, shape, None, None) for shape in recipe.product.bench_shapes(recipe)]
            continue
        for dtype, which in product(wanted.dtypes, wanted.majors):
            shapes = sizes(recipe, which) if sizes else benching.default_shapes(recipe)
            jobs += [(recipe.name, shape, dtype, which) for shape in wanted.shapes or shapes]
    return jobs


def _show_bench(made: list[Any], recorded: list[Any], skipped: dict[str, str], as_json: bool) -> None:
    if as_json:
        _print_json({"timed": made, "not_timed_here": skipped, "recorded": _marked(recorded)})
        return
    from cookbook.cli import tables

    if made:
        _print(tables.of_records(made, lambda record: False))
    _show_skipped("not timed", skipped, recorded)


def _show_skipped(what: str, skipped: dict[str, str], recorded: list[Any]) -> None:
    """The recipes that this machine left out, each with the reason, and what results/ has of them."""
    from cookbook.cli import tables
    from cookbook.measure import records

    for name, reason in skipped.items():
        _say(f"{name}: {what}: {reason}")
    if recorded:
        _say("what was recorded elsewhere:")
        _print(tables.of_records(recorded, records.is_stale))


def _marked(found: list[Any]) -> list[Any]:
    """Records, each told whether it is stale."""
    from cookbook.measure import records

    return [r | {"stale": records.is_stale(r), "host_stale": records.host_is_stale(r)} for r in found]


@app.command(epilog="Example: cookbook calibrate hopper/tuned_gemm --record")
def calibrate(names: Names = None, record: Record = False, as_json: Json = False) -> None:
    """Measure the figures of this GPU that GEMMs choose their kernels by.

    A recipe has defaults, of one chip. If nothing is said: every recipe with such figures. It needs an idle GPU, and
    some minutes for each recipe. With --record, this checkout uses the figures on such a GPU from now on.
    """
    from cookbook.check import levels as checking
    from cookbook.measure import calibration
    from cookbook.recipe import figures

    wanted = [catalog.find(name) for name in names or ()] or calibration.calibratable()
    for recipe in wanted:
        if reason := calibration.refusal(recipe):
            raise typer.BadParameter(f"NAME: got {recipe.name}, {reason}")
    skipped = {r.name: reason for r in wanted if (reason := checking.cannot_run(r, r.targets))}
    jobs, files, made = [recipe for recipe in wanted if recipe.name not in skipped], {}, {}
    with _progress(sum(map(calibration.steps, jobs))) as advance:
        for recipe in jobs:
            made[recipe.name] = calibration.measure(recipe.name, on_progress=advance)
            if record:
                files[figures.write(recipe.name, made[recipe.name])] = None
    if as_json:
        _print_json({"calibrated": made, "not_measured_here": skipped})
    else:
        _show_calibrated(made)
        _show_skipped("not measured", skipped, [])
    for file in files:
        _say(f"wrote {file}")
    raise typer.Exit(1 if skipped else 0)


def _show_calibrated(made: dict[str, Any]) -> None:
    from cookbook.cli import tables

    for name, found in made.items():
        _print(tables.of_calibration(name, found))
        if "misfit" in found:
            better = f"{found['misfit_before']:.2%} with the figures before, {found['misfit']:.2%} with these"
            _say(f"misfit of costs and times over {found['sizes']} sizes: {better}")
        given = ", ".join(f"{key}={each['measured']!r}" for key, each in found["changes"].items())
        _say(f"in a copied file, before the first matmul: calibrate({given})")


@app.command(epilog="Example: cookbook copy ampere/ldmatrix_gemm kernels/gemm.py")
def copy(
    name: Name,
    dest: Annotated[str, typer.Argument(metavar="DEST", help="A file NAME.py, or a folder to put it in: FOLDER/.")],
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
    torch_op: Annotated[
        str, typer.Option("--torch-op", metavar="LIB::NAME", help="Also define an operator of PyTorch; of a GEMM.")
    ] = "",
    minimal: Annotated[
        bool, typer.Option("--minimal", help="With a short host side: check, compile once, launch; of a plain GEMM.")
    ] = False,
    exercises: Annotated[
        bool, typer.Option("--exercises", help="Add the page's exercises, to work in the file.")
    ] = False,
) -> None:
    """Write a recipe as one file that runs without this package."""
    recipe = catalog.find(name)
    file = _copied_to(dest, recipe)
    if os.path.exists(file) and not force:
        raise typer.BadParameter(f"DEST: got {file}, which exists; needed a new file, or --force to write over it")
    with of_library({"torch_op": "--torch-op", "minimal": "--minimal"}):
        source = catalog.standalone_source(recipe.name, file.stem, torch_op=torch_op, minimal=minimal)
    source += _begun(recipe) if exercises else ""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"DEST: got {file}; needed a file that can be written ({error})") from None
    _say(f"wrote {file}: {len(source.splitlines())} lines that stand alone; the first say what they need")
    if called := recipe.product.usage(recipe):
        _say(f"call it: from {file.stem} import {called.names}; {called.call}  # {called.where}")
    if torch_op:
        _say(f"or as an operator: import {file.stem}; torch.ops.{torch_op.replace('::', '.')}(a, b)")
    if "try_out(matmul" in source:
        _say(f"try it: python {file} compares it with torch.matmul on ragged shapes, and times both")
    if exercises:
        _say(f"write the answers, then: cookbook exercise {file}")
    if recipe.runs_on != catalog.ANYWHERE:
        _say(f"it runs on a GPU of {recipe.needs_gpu}")


def _begun(recipe: catalog.Recipe) -> str:
    """The exercises of a recipe as a reader finds them, where its own code does not have them."""
    from cookbook.check import exercises

    with of_library({"recipe": "--exercises"}):
        exercises.tasks(recipe.name)
    text = exercises.as_begun(recipe.name)
    return f"\n\n{text}\n" if text else ""


def _copied_to(dest: str, recipe: catalog.Recipe) -> Path:
    """The file of a copy: one that can be imported, and that hides no module from what it imports itself."""
    from importlib.metadata import packages_distributions

    if dest.endswith(("/", os.sep)) or os.path.isdir(dest):
        return Path(dest) / f"{recipe.file.stem}.py"
    file = Path(dest)
    if file.suffix != ".py":
        raise typer.BadParameter(f"DEST: got {dest}; needed a file NAME.py, or a folder: {dest}/")
    if not file.stem.isidentifier() or keyword.iskeyword(file.stem):
        raise typer.BadParameter(f"DEST: got {dest}; needed a name that `import` takes, such as my_gemm.py")
    if file.stem in sys.stdlib_module_names or file.stem in packages_distributions():
        raise typer.BadParameter(f"DEST: got {dest}, which hides the module {file.stem}; needed a name of its own")
    return file


@app.command(epilog="Examples: cookbook results --stale    cookbook results --exact --jobs 2")
def results(
    stale: Annotated[bool, typer.Option("--stale", help="Only records of code that has changed since.")] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compile what every record is of, and compare: minutes, no GPU.")
    ] = False,
    restamp: Annotated[
        bool,
        typer.Option("--restamp", help="Compile what stale records are of; renew those whose kernels are the same."),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            parser=whole,
            metavar="N",
            help="Processes that compile. Default: one a CPU, 4 at most.",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what was measured; with --stale what must be measured again.

    --stale reads the recipes' text and takes a second. --exact and --restamp compile: exit status 1 if a record's
    kernels differ from today's, or if --restamp refuses one.
    """
    from cookbook.measure import records

    if stale + exact + restamp > 1:
        raise typer.BadParameter("--stale, --exact, --restamp: got several; needed one at most")
    _check_jobs(jobs=jobs)
    if exact or restamp:
        commands = _of_checkout("--exact" if exact else "--restamp")
        raise typer.Exit((commands.exact if exact else commands.restamp)(jobs, as_json, _progress))
    found = records.stale() if stale else records.read()
    if as_json:
        _print_json(_marked(found))
        return
    from cookbook.cli import tables

    if not found:
        _print("no stale record" if stale else "nothing measured yet")
    else:
        _print(tables.of_records(found, records.is_stale))
    if stale and (hosts := sum(not records.is_stale(r) and records.host_is_stale(r) for r in records.read())):
        _say(f"{hosts} current records have times of the host that are stale: its code has changed since")


@app.command(epilog="Example: cookbook doctor")
def doctor(as_json: Json = False) -> None:
    """Report this machine's set-up, what works, and how to fix what does not."""
    from cookbook.measure import doctor as examiner

    diagnoses = examiner.examine()
    if as_json:
        _print_json(examiner.to_json(diagnoses))
    else:
        from cookbook.cli import tables

        _print(tables.of_diagnoses(diagnoses))
    raise typer.Exit(0 if examiner.healthy(diagnoses) else 1)


layouts.attach(app)
exercise.attach(app)
ship.attach(app)
if found := tool("commands"):
    found.attach(app)


# --- shared -------------------------------------------------------------------------------------------------


def _wanted(names: list[str] | None, everything: bool, command: str) -> list[catalog.Recipe]:
    if everything == bool(names):
        example = f"cookbook {command} hopper/tma_wgmma_gemm"
        got = "names and --all" if names else "none"
        raise typer.BadParameter(f"NAME: got {got}; needed names of recipes or --all, such as: {example}")
    return catalog.recipes() if everything else [catalog.find(name) for name in names or ()]


def _chosen(
    recipes: list[catalog.Recipe],
    shapes: list[str] | None,
    dtypes: list[str] | None,
    targets: list[str] | None,
    everything: bool,
    majors: list[str] | None = None,
) -> list[tuple[catalog.Recipe, Any]]:
    """Each recipe with what to check of it, a `Chosen`; a wrong option is a wrong command line.

    With --all each recipe takes what fits it; one that nothing of an option fits is left out, and named.
    """
    from cookbook.check.chosen import chosen

    given = {"shape": [_shape(s) for s in shapes or ()], "dtype": [_dtype(d) for d in dtypes or ()]}
    given |= {"target": list(targets or ()), "major": list(majors or ())}
    asked = {recipe.name: given for recipe in recipes}
    if everything:
        fitting = {recipe.name: _fitting(recipe, given) for recipe in recipes}
        if kept := {name: fits for name, fits in fitting.items() if all(fits[w] or not given[w] for w in given)}:
            for name in fitting.keys() - kept:
                words = (str(v) for what, values in given.items() if not fitting[name][what] for v in values)
                _say(f"{name}: left out: not made for {', '.join(words)}")
            asked = kept
    with of_library({what: f"--{what}" for what in given}):
        of_each = [(r, asked[r.name]) for r in recipes if r.name in asked]
        return [(r, chosen(r, *(a[what] for what in given))) for r, a in of_each]


def _fitting(recipe: catalog.Recipe, given: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The values of each option that the recipe takes."""
    from cookbook.check.chosen import refusal

    return {w: [v for v in values if not refusal(recipe, w, v)] for w, values in given.items()}


def _recipe_json(recipe: catalog.Recipe) -> dict[str, Any]:
    return {key: str(value) if isinstance(value, Path) else value for key, value in vars(recipe).items()}


class _Recording:
    """Writes records at once, so that a run that is cut short keeps what it has measured, and says at the end where."""

    def __init__(self, wanted: bool, root: Path | None = None) -> None:
        """root: a folder other than results/; what is measured is then wanted."""
        self.wanted, self.root, self.files, self.made = wanted or root is not None, root, {}, []
        if self.wanted:
            _of_checkout("--share" if root else "--record")

    def keep(self, *made: Any) -> None:
        """made: records, or None for what has none."""
        from cookbook.measure import records

        if self.wanted:
            self.made += filter(None, made)
            self.files |= dict.fromkeys(records.write(filter(None, made), self.root))

    def say(self) -> None:
        """Compile what the records are of, for the hashes of their kernels, and say where they are."""
        from cookbook.measure import records

        if self.wanted and self.made:
            stamped, refused = tool("records.freshness").stamp(self.made)
            records.write(stamped, self.root)
            for record, _, why in refused:
                _say(f"{record['recipe']} {record['level']}: no hashes of its kernels: {why}")
        if self.wanted:
            _say("recorded in " + ", ".join(map(str, self.files)) if self.files else "nothing was measured to record")


@contextmanager
def _progress(total: int) -> Any:
    """A progress bar on stderr: yields a function that shows what comes next and counts the step before it.

    Where stderr is no terminal each step is a line, so that a log shows how far it came.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    console = Console(stderr=True)
    if not console.is_terminal:
        yield _counting(total)
        return
    counts = [column(table_column=Column(no_wrap=True)) for column in (MofNCompleteColumn, TimeElapsedColumn)]
    columns = BarColumn(), *counts, TextColumn("{task.description}", table_column=Column(overflow="fold"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, completed=-1)

        def advance(text: str) -> None:
            bar.update(task, advance=1, description=text)

        yield advance


def _counting(total: int) -> Callable[[str], None]:
    done = iter(range(1, total + 1))
    return lambda text: _say(f"[{next(done, total)}/{total}] {text}")


def main() -> None:
    """The entry point of the `cookbook` command."""
    open_streams()
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except catalog.CatalogError as error:
        _say(f"error: {error}")
        sys.exit(WRONG)
    except NotWritten as error:
        _say(f"stdout: got {error.strerror}; needed a file that can be written")
        sys.exit(WRONG)


if __name__ == "__main__":
    main()
