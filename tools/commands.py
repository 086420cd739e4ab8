"""What the command `cookbook` does in a checkout alone: `new`, `results --exact` and `--restamp`, and of `bench`
`--regret`, `--unseen`, `--calls` and `--threefold`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cookbook.cli.console import say, show, show_json

if TYPE_CHECKING:
    from tools.ops.measuring import Regret
    from tools.records.freshness import Verdict

Progress = Callable[[int], AbstractContextManager[Any]]
NO_GPU = "no CUDA device: nothing can be timed here"


def regret(dtype: str, rounds: int, record: bool, as_json: bool, progress: Progress) -> int:
    """Time the cases of a dtype that have no current record, and show the regret of all; the exit status."""
    import torch

    from tools.ops import measuring

    new: list[Any] = []
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
        cases = measuring.pending(device if record else "", dtype)
        with progress(len(cases)) as advance:
            for case in cases:
                advance(f"{'x'.join(map(str, case.shape))} {case.majors} {case.dtype}")
                new.append(measuring.measure(case, rounds))
                if record:  # at once: a run that is cut short is taken up where it ended
                    measuring.write(device, new[-1:])
    shown = _shown(new, record)
    if as_json:
        show_json({device: [found._asdict() for found in each] for device, each in shown.items()})
    else:
        _show_regrets(shown)
    if not torch.cuda.is_available():
        say(NO_GPU)
    return int(not torch.cuda.is_available())


def _shown(new: list[Any], record: bool) -> dict[str, list[Any]]:
    """Regrets by device: of what is recorded and current, or of what was measured and is not to be recorded."""
    from tools.ops import measuring

    if new and not record:
        import torch

        return {torch.cuda.get_device_name(): measuring.regrets(new)}
    known = {device: found["shapes"].values() for device, found in measuring.read().items()}
    current = {device: [each for each in found if not measuring.is_stale(each)] for device, found in known.items()}
    return {device: measuring.regrets(found) for device, found in current.items() if found}


def _show_regrets(shown: dict[str, list[Any]]) -> None:
    from tools.ops import measuring

    if not shown:
        show("nothing measured yet")
    for device, found in shown.items():
        show(of_regrets(device, sorted(found, key=lambda each: -each.part)))
        say(f"{device}: {measuring.summary(found)}")


def unseen(seed: int, rounds: int, record: bool, as_json: bool, progress: Progress) -> int:
    """Draw products that no figure was fitted to, time them, and show the regret with tuning and without; the exit
    status."""
    import torch

    from cookbook.ops import launching
    from tools.ops import measuring
    from tools.ops import unseen as drawing

    if not torch.cuda.is_available():
        say(NO_GPU)
        return 1
    device, found = torch.cuda.get_device_name(), []
    cases = [measuring.Case(shape) for shape in drawing.draw(seed, drawing.COUNT)]
    drawing.compile_ahead(cases, launching.gpu_of(torch.empty(1, device="cuda")))
    with progress(len(cases)) as advance:
        for case in cases:
            advance("x".join(map(str, case.shape)))
            found.append(measuring.measure(case, rounds))
    if as_json:
        show_json({"device": device, "seed": seed, "shapes": found})
    else:
        show_unseen(device, {seed: found})
    if record:
        say(f"wrote {drawing.write(device, seed, found)}")
    return 0


def show_unseen(device: str, seeds: dict[int, list[Any]]) -> None:
    """A table of each seed, and its two lines: as predicted, and tuned."""
    from tools.ops import measuring

    for seed, shapes in seeds.items():
        chosen = measuring.regrets(shapes)
        show(of_regrets(f"{device}, seed {seed}", sorted(chosen, key=lambda each: -each.part)))
        say(f"{device}, seed {seed}: {measuring.summary(chosen)}")
        say(f"tuned: {measuring.summary(measuring.regrets(shapes, tuned=True))}")


def restamp_operator(jobs: int | None, progress: Progress) -> Any:
    """Renew the operator's records whose kernels are the same to the bit; what was done, None where there is none."""
    from tools.ops import renewing

    with progress(renewing.wanted()) as advance:
        done = renewing.restamp(jobs=jobs, on_progress=advance)
    if not any(done):
        return None
    for why in done.refused:
        say(why)
    many = f"{done.left} left as they were, {done.renewed} renewed, {done.stamped} stamped"
    say(f"products of the operator: {many}, {len(done.refused)} refused")
    return done


def threefold(jobs: list[tuple[str, Any, str]], record: bool, as_json: bool) -> int:
    """Measure contests three ways and show the quotients; the exit status."""
    import torch

    from tools import threefold as measuring

    if not torch.cuda.is_available():
        say(NO_GPU)
        return 1
    found = []
    for name, shape, dtype in dict.fromkeys(jobs):
        held = measuring.contest_of(name, shape, dtype)
        found.append(measuring.record_of(name, shape, dtype, held.standard, measuring.measure(held)))
        for ours, peer in measuring.pairs(found[-1]) if not as_json else ():
            said = "  ".join(f"{way} {x:.3f}" for way, x in measuring.quotients(found[-1], ours, peer).items())
            show(f"{name} {'x'.join(map(str, shape))} {dtype}, {ours}: {peer}'s over ours: {said}")
    if as_json:
        show_json(found)
    if record:
        say(f"wrote {measuring.write(torch.cuda.get_device_name(), found)}")
    return 0


def calls(record: bool, as_json: bool) -> int:
    """Time calls of the operator on the host and show them; the exit status."""
    import torch

    from tools.ops import measuring

    if not torch.cuda.is_available():
        say(NO_GPU)
        return 1
    found = measuring.calls(torch.cuda.synchronize)
    if as_json:
        show_json(found)
    else:
        for way, us in found["us"].items():
            show(f"{us:8.2f} us  {way}")
    if record:
        say(f"wrote {measuring.write(torch.cuda.get_device_name(), called=found)}")
    return 0


# --- records -------------------------------------------------------------------------------------------------------


def exact(jobs: int | None, as_json: bool, progress: Progress) -> int:
    """Compare every record with what is compiled now, and say so; the exit status."""
    from cookbook.measure import records
    from tools.records import freshness

    found = records.read()
    with progress(freshness.how_many(found)) as advance:
        verdicts = freshness.compare(found, jobs, advance)
    if as_json:
        show_json([v.to_json() for v in verdicts])
    else:
        show(of_verdicts([v for v in verdicts if v.status != freshness.CURRENT]))
    counts = [f"{sum(v.status == status for v in verdicts)} {status}" for status in freshness.STATUSES]
    say(f"{len(found)} records: {', '.join(counts)}")
    return int(any(v.status == freshness.DIFFERS for v in verdicts))


def restamp(jobs: int | None, as_json: bool, progress: Progress) -> int:
    """Renew the records that may be, and say which may not; the exit status."""
    from cookbook.measure import records
    from tools.records import freshness

    found = records.read()
    with progress(freshness.how_many(r for r in found if not freshness.is_settled(r))) as advance:
        done = freshness.restamp(found, jobs=jobs, on_progress=advance)
    products = restamp_operator(jobs, progress)
    if as_json:
        counted = {key: len(getattr(done, key)) for key in ("current", "renewed", "stamped")}
        refused = [verdict.to_json() for verdict in done.refused]
        show_json(counted | {"refused": refused} | ({"operator": products._asdict()} if products else {}))
    counts = f"{len(done.current)} were current, {len(done.renewed)} renewed, {len(done.stamped)} stamped"
    say(f"{len(found)} records: {counts}, {len(done.refused)} refused")
    if done.refused and not as_json:
        show(of_verdicts(done.refused))
    return int(bool(done.refused or (products and products.refused)))


# --- tables --------------------------------------------------------------------------------------------------------


def of_regrets(device: str, found: Iterable[Regret]) -> Any:
    """`cookbook bench --regret`: a line for each product on one device."""
    from cookbook.cli import tables

    columns = f"M x N x K ({device})", "operands", "chosen", "fastest", "regret", "torch.matmul's time / ours"
    table = tables.new_table(*columns)
    for each in found:
        of = "x".join(map(str, each.case.shape)), f"{each.case.majors} {each.case.dtype}", each.chosen, each.best
        table.add_row(*of, f"{each.part:.1%}", f"{each.against_torch:.3f}")
    return table


def of_verdicts(verdicts: Iterable[Verdict]) -> Any:
    """`cookbook results --exact`: what is not current, and why."""
    from rich.markup import escape

    from cookbook.cli import tables

    table = tables.new_table("recipe", "level", "of", "status", "why")
    for record, status, why in verdicts:
        words = (record.get("majors"), record["dtype"], "x".join(map(str, record["shape"] or ())))
        of = " ".join(word for word in words if word)
        table.add_row(record["recipe"], record["level"], of, tables.coloured(status), escape(why))
    return table if table.row_count else "every record is of the kernels that are compiled today"


# --- a new recipe ----------------------------------------------------------------------------------------------------


def new(
    name: Annotated[str, typer.Argument(metavar="TRACK/NAME", help="The new recipe, such as hopper/my_gemm.")],
    base: Annotated[
        str, typer.Option("--from", help="The GEMM to begin with; the first of the track if left out.")
    ] = "",
) -> None:
    """Begin a recipe: a copy of a GEMM under a new name, and its test. In a checkout only."""
    from tools import new as beginning

    try:
        files = beginning.skeleton(name, base)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    for file, text in files.items():
        file.write_text(text, encoding="utf-8")
        say(f"wrote {file}")
    say(f"next: change one idea in it, then cookbook check {name}, and make site")


def attach(app: typer.Typer) -> None:
    """Puts the command under `app`."""
    app.command(epilog="Example: cookbook new hopper/my_gemm --from hopper/tma_wgmma_gemm")(new)
