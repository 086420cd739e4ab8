"""Tables of a GEMM's limits, from a record of level "limits": `tools/limits.py` measures it."""

from __future__ import annotations

from typing import Any

from cookbook.measure.records import Record
from cookbook.publish.markdown import table

__all__ = ["in_words", "tables"]

# Columns by figure: heading, and how the figure is written.
SUSTAINED = {
    "tflops": ("TFLOP/s", "{:.0f}"),
    "clock_mhz": ("SM clock, MHz", "{:.0f}"),
    "power_w": ("W", "{:.0f}"),
    "joules_per_tflop": ("J for each TFLOP", "{:.3f}"),
    "flops_per_clock": ("FLOP a clock and SM", "{:.0f}"),
    "capped": ("of the time, clock lowered for power", "{:.0%}"),
}
PROFILED = {
    "tensor_pipe_pct": ("tensor pipe busy", "{:.1f}%"),
    "stalls": ("a warp waits for", ""),
    "where": ("where warps stand (clocks each time)", ""),
    "l2_hit_pct": ("hits of L2", "{:.1f}%"),
    "l2_read_gbps": ("read from L2, GB/s", "{:.0f}"),
    "dram_read_gbps": ("from memory, GB/s", "{:.0f}"),
}


def tables(record: Record) -> list[str]:
    """Markdown: what each variant and peer sustains, what ncu finds of the variants, and what the GPU has.

    Columns that are empty in every row are left out, and rows that have none of the figures.
    """
    variants, made = record["figures"]["variants"], []
    for first, columns, everyone in (
        ("variant or peer", SUSTAINED, variants | record["peers"]),
        ("variant", PROFILED, variants),
    ):
        keys = [key for key in columns if any(key in figures for figures in everyone.values())]
        rows = [
            [who, *(_written(columns[key][1], figures.get(key)) for key in keys)]
            for who, figures in everyone.items()
            if any(key in figures for key in keys)
        ]
        made += [table([first, *(columns[key][0] for key in keys)], rows)] if keys else []
    return [*made, _of_the_gpu(record)]


def _written(form: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(
            _shared(name, *of) if isinstance(of, list) else _shared(name, of) for name, of in value.items()
        )
    return "" if value is None else form.format(value)


def _shared(name: str, share: float, clocks: float | None = None) -> str:
    """ "long scoreboard 20%"; "`FFMA` 19% (2.8)"."""
    return f"{name.replace('_', ' ')} {share:.0%}" if clocks is None else f"`{name}` {share:.0%} ({clocks})"


def in_words(figures: dict[str, Any]) -> str:
    """A record's figures in a line: each variant and peer with rate, clock and power."""
    everyone = figures["variants"] | figures.get("peers", {})
    said = []
    for who, f in everyone.items():
        each = [f"{f[key]:.{digits}f} {unit}" for key, digits, unit in _SAID if key in f]
        said.append(f"{who}: {', '.join(each)}")
    return "; ".join(said)


_SAID = (
    ("tflops", 0, "TFLOP/s"),
    ("clock_mhz", 0, "MHz"),
    ("power_w", 0, "W"),
    ("joules_per_tflop", 2, "J/TFLOP"),
    ("tensor_pipe_pct", 0, "% tensor pipe"),
)


def _of_the_gpu(record: Record) -> str:
    """The power limit and the highest clock, in a sentence; empty if the driver did not say."""
    gpu = record["figures"]["gpu"]
    said = {"power_limit_w": "a power limit of {:.0f} W", "max_clock_mhz": "a highest SM clock of {:.0f} MHz"}
    parts = [text.format(gpu[key]) for key, text in said.items() if key in gpu]
    return f"The GPU has {' and '.join(parts)}." if parts else ""
