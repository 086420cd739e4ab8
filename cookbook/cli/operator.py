"""`cookbook bench --regret` and `--calls`: what cookbook.ops loses by its choice, and what a call of it costs; and
`cookbook results --restamp` of their records."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from cookbook.cli.console import say, show, show_json

NO_GPU = "no CUDA device: nothing can be timed here"


def regret(
    dtype: str, rounds: int, record: bool, as_json: bool, progress: Callable[[int], AbstractContextManager[Any]]
) -> int:
    """Time the cases of a dtype that have no current record, and show the regret of all; the exit status."""
    import torch

    from cookbook.ops import measuring

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
    from cookbook.ops import measuring

    if new and not record:
        import torch

        return {torch.cuda.get_device_name(): measuring.regrets(new)}
    known = {device: found["shapes"].values() for device, found in measuring.read().items()}
    current = {device: [each for each in found if not measuring.is_stale(each)] for device, found in known.items()}
    return {device: measuring.regrets(found) for device, found in current.items() if found}


def _show_regrets(shown: dict[str, list[Any]]) -> None:
    from cookbook.cli import tables
    from cookbook.ops import measuring

    if not shown:
        show("nothing measured yet")
    for device, found in shown.items():
        show(tables.of_regrets(device, sorted(found, key=lambda each: -each.part)))
        say(f"{device}: {measuring.summary(found)}")


def unseen(
    seed: int, rounds: int, record: bool, as_json: bool, progress: Callable[[int], AbstractContextManager[Any]]
) -> int:
    """Draw products that no figure was fitted to, time them, and show the regret with tuning and without; the exit
    status."""
    import torch

    from cookbook.ops import launching, measuring
    from cookbook.ops import unseen as drawing

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
    from cookbook.cli import tables
    from cookbook.ops import measuring

    for seed, shapes in seeds.items():
        chosen = measuring.regrets(shapes)
        show(tables.of_regrets(f"{device}, seed {seed}", sorted(chosen, key=lambda each: -each.part)))
        say(f"{device}, seed {seed}: {measuring.summary(chosen)}")
        say(f"tuned: {measuring.summary(measuring.regrets(shapes, tuned=True))}")


def restamp(jobs: int | None, progress: Callable[[int], AbstractContextManager[Any]]) -> Any:
    """Renew the operator's records whose kernels are the same to the bit; what was done, None where there is none."""
    from cookbook.ops import renewing

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

    from cookbook.measure import threefold as measuring

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

    from cookbook.ops import measuring

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
