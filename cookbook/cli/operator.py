"""`cookbook bench --regret` and `--calls`: what cookbook.ops loses by its choice, and what a call of it costs."""

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
