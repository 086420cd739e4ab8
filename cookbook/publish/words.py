"""The figures of a level in a line of words: for tables, and for notebooks."""

from __future__ import annotations

from typing import Any

from cookbook.check import counted
from cookbook.check.levels import Level
from cookbook.measure import ceilings
from cookbook.publish import limits
from cookbook.publish.markdown import in_us

__all__ = ["WORDS", "describe", "rate"]

SIMULATED = "the layouts, simulated (not the kernel)"  # what level "model" is


def describe(level: Level) -> str:
    """A level's figures in words: what failed comes first, where it was recorded comes last."""
    if level.status in ("failed", "not checked"):
        return level.reason
    words = WORDS[level.level](level.figures) + (f"; not of {', not of '.join(level.without)}" if level.without else "")
    when = f" ({level.device}, {level.date} UTC)" if level.date else f" ({level.device})" if level.device else ""
    return f"{words}{when}" + ("; the code has changed since" if level.status == "stale" else "")


def _layout(figures: dict[str, Any]) -> str:
    """The findings by what they look at: `a.bijective, b.bijective` is `bijective: a b`. Of a study, its facts."""
    if "facts" in figures:
        return f"{len(figures['facts'])} facts: {', '.join(figures['facts'])}"
    subjects: dict[str, list[str]] = {}
    for name in figures:
        subject, _, what = name.rpartition(".")
        subjects.setdefault(what, []).append(subject)
    return "; ".join(f"{what}: {' '.join(filter(None, found))}" for what, found in subjects.items())


def _model(figures: dict[str, Any]) -> str:
    if "epilogues" in figures:
        return f"on the host, on random numbers: {', '.join(figures['epilogues'])}, each as its reference"
    if "mismatches" in figures:
        return f"{SIMULATED}: every element where it belongs"
    return f"{SIMULATED}: integers exact, normals {figures['relative_error']:.0e}"


def _compiled(figures: dict[str, Any]) -> str:
    instructions = ", ".join(f"{count} {name}" for name, count in figures["instructions"].items())
    smem = f"{figures['smem_bytes'] / 1024:.0f} of {figures['smem_limit'] // 1024} KiB"
    asked = "; ".join(figures["checker"])
    checker = f"; NVIDIA's checker: {asked}" if asked else "; NVIDIA's checker: nothing"
    return f"{figures['registers']} registers, {figures['spills']} spilled, {smem}; {instructions}{checker}"


def _product(f: dict[str, Any]) -> str:
    return f"the kernel, followed to C: {f['problems']} problems, {f['stores']} elements stored, each its own sum"


def _host(f: dict[str, Any]) -> str:
    return f"what matmul launches: {f['launches']}; {f['refused']} kinds of wrong calls refused"


def _pipeline(f: dict[str, Any]) -> str:
    barriers = f"{f['barriers']} mbarriers" if f["barriers"] else "barriers of the CTA"
    return f"{f['problems']} problems, {f['warps']} warps, {barriers}: {f['steps']} steps, in any order"


def _banks(figures: dict[str, Any]) -> str:
    """Return how many lines take their ideal; the others with their wavefronts, and why they may."""
    ideal = [x["wavefronts"] for x in figures["lines"] if not x["why"]]
    text = "line {line}: {what} takes {wavefronts:,} wavefronts, at best {ideal:,}: {why}"
    said = [text.format(**x) for x in figures["lines"] if x["why"]]
    if ideal:
        said.insert(0, f"{len(ideal)} line{'s' if len(ideal) > 1 else ''} without conflicts: {sum(ideal):,} wavefronts")
    return "; ".join(said) or "shared memory is touched by TMA and the tensor cores alone"


def _cost(f: dict[str, Any]) -> str:
    moved = ", ".join(f"{amount:,} bytes {way}" for way, amount in f["bytes"].items())
    moved += f", {f['delivered']:,} delivered" if f["delivered"] > f["bytes"].get("global to shared", 0) else ""
    issued = ", ".join(f"{count:,} {name}" for name, count in f["instructions"].items())
    ctas = f"{f['ctas']} CTA{'s' if f['ctas'] > 1 else ''}"
    return f"{ctas} of {f['problem']}: {moved}; {f['multiply_adds']:,} multiply-adds; {issued}"


def _ran(figures: dict[str, Any]) -> str:
    if "variants" in figures:
        return f"{figures['shapes']} shapes, bit for bit, by {' '.join(figures['variants'])}"
    if "worst_error" not in figures:  # of a recipe that only moves bytes: how many runs of each of its kernels
        runs = ", ".join(f"{count} of {kernel}" for kernel, count in figures.items() if isinstance(count, int))
        return f"bit for bit: {runs}"
    ratio = figures["worst_ratio"]
    beside = f", {ratio:.3f} of torch.matmul's at worst" if ratio else ""
    by = f", by each of {', '.join(figures['by'])}" if "by" in figures else ""
    return f"{figures['shapes']} shapes{by}; error {figures['worst_error']:.1e}{beside}"


def _timed(figures: dict[str, Any]) -> str:
    peers = figures.get("peers", {})
    ratios = ", ".join(f"{peer['ratio']:.3f} of {name}" for name, peer in peers.items())
    spread = f"{in_us(figures['min_ms'])}-{in_us(figures['max_ms'])}"
    host = {"ours": figures, **peers} if "host_us" in figures else {}
    calls = ", ".join(f"{who} {each['host_us']:.1f}" for who, each in host.items() if "host_us" in each)
    calls = calls or figures.get("host", "")
    taken = f"{in_us(figures['median_ms'])} us ({spread}), {rate(figures)}; {ratios}"
    return taken + (calls and f"; us a call: {calls}")


def rate(figures: dict[str, Any]) -> str:
    """A timing's work a second, with its unit."""
    return f"{figures['tflops']:.0f} TFLOP/s" if "tflops" in figures else f"{figures['gbps']:.0f} GB/s"


def _counted(figures: dict[str, Any]) -> str:
    """Figures by instruction, as `counting.compare` gives them, in wavefronts of one execution; or an experiment's."""
    if figures and all("read_bytes" in f for f in figures.values()):
        return "read from memory: " + ", ".join(f"{f['read_bytes'] / 1e9:.2f} GB {name}" for name, f in figures.items())
    each = [f"{f['wavefronts'] / f['executed']:.3g} for {name}" for name, f in figures.items()]
    return f"wavefronts: {', '.join(each)}; {sum(f['excess'] for f in figures.values())} in excess"


def _sanitized(figures: dict[str, Any]) -> str:
    found = {tool: figures[tool] for tool in counted.TOOLS}
    found["racecheck"] = counted.hazards(figures) or figures["racecheck"]
    each = ", ".join(f"{tool} {number}" for tool, number in found.items())
    return f"{each} over {len(figures['shapes'])} shapes"


def _probed(f: dict[str, Any]) -> str:
    return f"{f['mismatches']} of {f['probes']} {f['unit']} differ from the model"


def _ceiling(figures: dict[str, Any]) -> str:
    return ceilings.in_words(figures)


# A level's figures in words.
WORDS = {
    "layout": _layout,
    "model": _model,
    "product": _product,
    "host": _host,
    "pipeline": _pipeline,
    "banks": _banks,
    "cost": _cost,
    "compiled": _compiled,
    "ran": _ran,
    "timed": _timed,
    "counted": _counted,
    "sanitized": _sanitized,
    "probed": _probed,
    "ceiling": _ceiling,
    "limits": limits.in_words,
}
