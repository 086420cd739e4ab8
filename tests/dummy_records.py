"""Timed records for tests of what is published: of no GPU, and of no recipe's own folder."""

from __future__ import annotations

from cookbook.measure import records

TUNED, CUBE = "hopper/tuned_gemm", (8192, 8192, 8192)


def record(name=TUNED, shape=CUBE, ms=2.0, torch_ms=2.1, others=None, **changed):
    """A timed record: ours takes `ms`, torch.matmul `torch_ms`, `others` what they say."""
    flops = 2e-9 * shape[0] * shape[1] * shape[2]

    def figures(each):
        f = {"median_ms": each, "min_ms": 0.9 * each, "max_ms": 1.25 * each}
        return f | {"tflops": round(flops / each, 2), "ratio": round(each / ms, 4)}

    took = {"torch.matmul": torch_ms, **({"quack": 2.2, "ceiling": 1.5} if others is None else others)}
    made = {
        "level": "timed",
        "recipe": name,
        "code": records.code_of(name),
        "dtype": "bfloat16",
        "shape": list(shape),
        "status": "passed",
        "figures": figures(ms),
        "peers": {who: figures(each) for who, each in took.items()},
        "distribution": "normal(0, 1)",
        "date": "2031-05-06 07:08",
        "device": "Test GPU",
        "driver": "1.2",
        "versions": {"torch": "9.8"},
    }
    return made | changed
