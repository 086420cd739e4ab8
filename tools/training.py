"""Train a small transformer with nn.Linear and with cookbook.ops.Linear, from the same seed: loss and time of a step.

    python -m tools.training                 # 6 layers, 200 steps; needs a GPU that a recipe serves
    python -m tools.training --wide          # so much work that the GPU, and not the host, is what a step waits for
    python -m tools.training --compiled      # both under torch.compile
    python -m tools.training --compiled --trace   # and which kernels one step launches, with their times

The task is made up: the next token is a fixed function of the two before it, so that the loss has something to learn.
Prints a line every 20 steps, then the last losses' difference and the ratio of the median step times. With --json FILE
it also writes both curves; with --record into results/<device>/training.json, which a page shows.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from cookbook import ops
from cookbook.measure import records
from cookbook.ops import choice

FILE = "training.json"
NAME = 48  # characters of a kernel's name that are kept
WARM_UP = 10  # steps whose time is not counted: kernels are compiled in them


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model, a batch and a step. With these an H200 is done before Python has launched all kernels."""

    layers: int = 6
    width: int = 1024
    heads: int = 16
    tokens: int = 256  # of the vocabulary
    length: int = 512
    batch: int = 16
    rate: float = 3e-4  # of learning


WIDE = Sizes(width=2048, length=1024, rate=1e-4)  # eight times the work for as many launches; wider learns slower


class Block(nn.Module):
    """Attention, then a feed-forward part four times as wide."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.heads, width = sizes.heads, sizes.width
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        split = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-3, -2)
        attended = functional.scaled_dot_product_attention(*split.unbind(0), is_causal=True)
        x = x + self.out(attended.transpose(-3, -2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.between(x))))


class Model(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(sizes.tokens, sizes.width), nn.Embedding(sizes.length, sizes.width)
        self.blocks = nn.Sequential(*(Block(sizes) for _ in range(sizes.layers)))
        self.norm, self.head = nn.LayerNorm(sizes.width), nn.Linear(sizes.width, sizes.tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.places(places))))


def batch(sizes: Sizes, step: int, device: str) -> torch.Tensor:
    """Sequences (batch, length + 1) in which each token follows from the two before it; the same for each model."""
    drawn = torch.Generator().manual_seed(step)
    found = [torch.randint(sizes.tokens, (sizes.batch,), generator=drawn) for _ in range(2)]
    while len(found) <= sizes.length:
        found.append((3 * found[-1] + 5 * found[-2] + 7) % sizes.tokens)
    return torch.stack(found, 1).to(device)


def train(
    sizes: Sizes, steps: int, ours: bool, compiled: bool = False, device: str = "cuda", trace: bool = False
) -> dict[str, list[Any]]:
    """Losses, and milliseconds on the GPU, of each step. With `trace` also the kernels of one step more."""
    torch.manual_seed(0)
    model = Model(sizes).to(device, torch.bfloat16)
    if ours:
        ops.replace_linears(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=sizes.rate)
    forward = torch.compile(model, fullgraph=True) if compiled else model
    losses, times = [], []
    for step in range(steps):
        tokens = batch(sizes, step, device)
        start = _mark(device)
        loss = _step(forward, optimizer, tokens)
        times.append(_since(start, device))
        losses.append(loss.item())
        if step % 20 == 0:
            print(
                f"{'ours' if ours else 'torch':5}  step {step:4}  loss {losses[-1]:.4f}  {times[-1]:.2f} ms", flush=True
            )
    found: dict[str, list[Any]] = {"loss": losses, "ms": times}
    if trace:
        found["kernels"] = kernels(lambda: _step(forward, optimizer, batch(sizes, steps, device)))
    return found


def _step(forward: Callable[..., torch.Tensor], optimizer: torch.optim.Optimizer, tokens: torch.Tensor) -> torch.Tensor:
    logits = forward(tokens[:, :-1])
    loss = functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def kernels(work: Callable[[], Any]) -> list[tuple[str, float, float]]:
    """The kernels that `work` launches, by torch's profiler: name, start and end in microseconds from the first one."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as trace:
        work()
        torch.cuda.synchronize()
    on_gpu = [each for each in trace.events() or () if each.device_type == torch.autograd.DeviceType.CUDA]
    ran = [each for each in on_gpu if not (each.is_user_annotation or "#" in each.name)]  # a span of several kernels
    spans = sorted((each.time_range.start, each.time_range.end, each.name[:NAME]) for each in ran)
    return [(name, round(start - spans[0][0], 1), round(end - spans[0][0], 1)) for start, end, name in spans]


def _mark(device: str) -> Any:
    if device == "cpu":
        return None
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _since(start: Any, device: str) -> float:
    if device == "cpu":
        return 0.0
    stop = torch.cuda.Event(enable_timing=True)
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def compared(torchs: dict[str, list[float]], ours: dict[str, list[float]]) -> dict[str, float]:
    """Return how far the mean of the last losses is from torch's, as a part of it, and our median step over torch's."""
    last = [statistics.mean(found["loss"][-WARM_UP:]) for found in (torchs, ours)]
    median = [statistics.median(found["ms"][WARM_UP:] or found["ms"]) for found in (torchs, ours)]
    return {"loss": last[1] / last[0] - 1, "step": median[1] / median[0] if median[0] else 1.0}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Train with nn.Linear and with cookbook.ops.Linear.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--compiled", action="store_true", help="both models under torch.compile")
    parser.add_argument("--wide", action="store_true", help=f"a model {WIDE.width} wide, of {WIDE.length} tokens")
    parser.add_argument("--json", type=Path, help="write both curves into this file")
    parser.add_argument("--record", action="store_true", help="write both curves into results/<device>/training.json")
    parser.add_argument("--trace", action="store_true", help="note the kernels of one step more, with their times")
    given = parser.parse_args(argv)
    sizes = WIDE if given.wide else Sizes()
    torchs, ours = (train(sizes, given.steps, each, given.compiled, trace=given.trace) for each in (False, True))
    found = compared(torchs, ours)
    print(f"last losses differ by {found['loss']:+.2%}; a step takes {found['step']:.3f} of torch's time")
    device = torch.cuda.get_device_name()
    record = record_of(torchs, ours, device, given.compiled, sizes)
    if given.json:
        given.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if given.record:
        print(f"wrote {write(record)}")


def record_of(
    torchs: dict[str, list[float]], ours: dict[str, list[float]], device: str, compiled: bool, sizes: Sizes
) -> Any:
    """Both curves, and where and of what they were taken: the code is of the recipes that a GPU of its kind may choose
    of."""
    curves = {
        who: {"loss": [round(x, 5) for x in each["loss"]], "ms": [round(x, 3) for x in each["ms"]]}
        | ({"kernels": each["kernels"]} if "kernels" in each else {})
        for who, each in (("torch", torchs), ("ours", ours))
    }
    serving = [recipe.name for recipe, _ in choice.candidates(torch.cuda.get_device_capability())]
    about = {"date": records.now(), "versions": records.versions()}
    return {
        "device": device,
        "compiled": compiled,
        "sizes": asdict(sizes),
        "code": {name: records.code_of(name) for name in serving},
        **about,
        **curves,
    }


def write(record: dict[str, Any], root: Path | None = None) -> Path:
    """Put a run into its device's file, in place of the one before of the same model that was compiled, or not."""
    file = (root or records.results_root()) / records.slug(record["device"]) / FILE
    runs = {_kind(run): run for run in [*read(root), record] if run["device"] == record["device"]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps([runs[kind] for kind in sorted(runs)], indent=1) + "\n", encoding="utf-8")
    return file


def sizes_of(run: dict[str, Any]) -> Sizes:
    """The sizes of the trained model; the first recorded runs do not name them."""
    return Sizes(**run.get("sizes", {}))


def _kind(run: dict[str, Any]) -> tuple[int, bool]:
    return sizes_of(run).width, run["compiled"]


def read(root: Path | None = None) -> list[dict[str, Any]]:
    """The recorded runs of every device."""
    files = records.files(FILE, root)
    return [run for file in files for run in json.loads(file.read_text(encoding="utf-8"))]


if __name__ == "__main__":
    main()
