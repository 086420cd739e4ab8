"""Clock and power of this GPU while something runs, as `nvidia-smi` reports them every EVERY_MS."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

EVERY_MS = 50
FIRST_SAMPLE_S = 10.0  # nvidia-smi takes its time to start

# A figure -> nvidia-smi's name for it. Drivers that do not know the others have the first two.
FIELDS = {
    "clock_mhz": "clocks.sm",
    "power_w": "power.draw.instant",
    "power_limit_w": "enforced.power.limit",
    "max_clock_mhz": "clocks.max.sm",
    "capped": "clocks_event_reasons.sw_power_cap",  # whether the clock is lowered to keep to the power limit
}
BASIC = ("clock_mhz", "power_w")


class Unmeasurable(RuntimeError):
    """Clock and power cannot be had here."""


class Sampler:
    """One nvidia-smi that reports every EVERY_MS for as long as the `with` lasts; a thread reads what it prints.

    Raises:
        Unmeasurable: on entering: there is no nvidia-smi, or it reports neither clock nor power.
    """

    def __init__(self, gpu: str) -> None:
        """gpu: as nvidia-smi's -i takes it: a UUID, or a place on the PCI bus."""
        if shutil.which("nvidia-smi") is None:
            raise Unmeasurable("nvidia-smi is not on PATH: it comes with the driver")
        self.command = ["nvidia-smi", "-i", gpu, "--format=csv,noheader,nounits"]
        self.fields = _known_fields(self.command)
        self.samples: list[tuple[float, dict[str, float]]] = []  # when each was read, and its values
        self.said = ""  # the last line that is no sample

    def __enter__(self) -> Sampler:
        command = [*self.command, _query(self.fields), "-lms", str(EVERY_MS)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        until = time.monotonic() + FIRST_SAMPLE_S
        while not self.samples and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        if not self.samples:
            self.__exit__()
            raise Unmeasurable(f"nvidia-smi reported neither clock nor power: {self.said or 'it printed nothing'}")
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.terminate()
        self._process.wait()
        self._thread.join()

    def _read(self) -> None:
        for line in self._process.stdout or ():
            if values := parse_sample(line, self.fields):
                self.samples.append((time.monotonic(), values))
            elif line.strip():
                self.said = line.strip()

    def between(self, start: float, stop: float) -> list[dict[str, float]]:
        """The samples that were read between two times of `time.monotonic`."""
        return [values for at, values in list(self.samples) if start <= at <= stop]


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """A dict that is filled when the `with` is over: the medians of this GPU's clock and power meanwhile, or under
    "reason" why there are none."""
    found: dict[str, Any] = {}
    sampler: Sampler | None = None
    with ExitStack() as stack:
        try:
            sampler = stack.enter_context(Sampler(gpu_id()))
        except Unmeasurable as error:
            found["reason"] = str(error)
        yield found
    if sampler is not None:
        found |= medians([values for _, values in sampler.samples])


def _query(fields: Iterable[str]) -> str:
    return "--query-gpu=" + ",".join(FIELDS[key] for key in fields)


def _known_fields(command: list[str]) -> tuple[str, ...]:
    """All of FIELDS, or BASIC: nvidia-smi refuses the whole query for one name that it does not know."""
    asked = subprocess.run([*command, _query(FIELDS)], capture_output=True, text=True, check=False)
    return tuple(FIELDS) if asked.returncode == 0 else BASIC


def parse_sample(line: str, fields: Iterable[str]) -> dict[str, float]:
    """A line of nvidia-smi's CSV by field. What the GPU does not report ("[N/A]") is left out; {} of any other line."""
    names, words = tuple(fields), [word.strip() for word in line.split(",")]
    if len(words) != len(names):
        return {}
    numbers = {name: number(word) for name, word in zip(names, words, strict=True)}
    return {name: number for name, number in numbers.items() if number is not None}


def number(word: str) -> float | None:
    """A word of nvidia-smi or ncu as a number, if it is one: "Active" is 1."""
    if word in ("Active", "Not Active"):
        return float(word == "Active")
    try:
        return float(word)
    except ValueError:
        return None


def medians(samples: list[dict[str, float]]) -> dict[str, float]:
    """The median of each field over the samples that have it; of `capped`, the share of them that are."""
    found = {}
    for key in FIELDS:
        if values := [sample[key] for sample in samples if key in sample]:
            found[key] = round(statistics.fmean(values) if key == "capped" else statistics.median(values), 3)
    return found


def gpu_id() -> str:
    """The current CUDA device as nvidia-smi knows it. Its index will not do: CUDA_VISIBLE_DEVICES changes that."""
    import torch

    gpu = torch.cuda.get_device_properties(torch.cuda.current_device())
    if uuid := str(getattr(gpu, "uuid", "")):
        return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    return f"{gpu.pci_domain_id:08x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
