"""Measure the host time of a GEMM's call again, in those records of this GPU where the host's code has changed.

    python -m tools.host_times [NAME...]       # every GEMM whose times of the host are stale, or those named

`cookbook bench --record` takes them with the times of the kernels. The host's code changes more often than kernels do:
this leaves the kernels' times and their date as they are.
"""

from __future__ import annotations

import itertools
import sys

from cookbook.measure import contest, peers, records
from cookbook.recipe import catalog
from cookbook.recipe.majors import DEFAULT
from tools.records import device_code


def renewed(found: list[records.Record], costs: dict[str, dict[str, float]]) -> list[records.Record]:
    """Records of one recipe, dtype and majors with `costs`, by variant, in place of the times of the host they had."""
    new = []
    for record in found:
        peers_of = {
            who: records.without_host_times(figures) | costs.get(who, {}) for who, figures in record["peers"].items()
        }
        figures = records.without_host_times(record["figures"]) | costs[contest.OURS]
        others = {"figures": figures, "peers": peers_of, "host": device_code.host_hash(record["recipe"])}
        new.append(record | others)
    return new


def stale(device: str, names: list[str]) -> dict[tuple[str, str, str], list[records.Record]]:
    """Records of `device` whose times of the host are stale, by recipe, dtype and majors; of `names`, or of all."""
    found = [
        record
        for record in records.read()
        if record["device"] == device and record["level"] == "timed" and records.host_is_stale(record)
    ]
    kept = [record for record in found if not names or record["recipe"] in names]

    def key(record: records.Record) -> tuple[str, str, str]:
        return record["recipe"], record["dtype"], record.get("majors") or DEFAULT

    return {which: list(each) for which, each in itertools.groupby(sorted(kept, key=key), key)}


def main(names: list[str]) -> None:
    import torch

    found = stale(torch.cuda.get_device_name(), [catalog.find(name).name for name in names])
    for number, ((name, dtype, majors), each) in enumerate(found.items(), 1):
        matmul = catalog.load(name).matmul
        costs = peers.host_costs(matmul, dtype, majors, quack=False)  # QuACK tunes itself for some 15 seconds
        records.write(renewed(each, costs))
        ours = costs[contest.OURS]
        print(f"[{number}/{len(found)}] {name} {dtype} {majors}: {ours['host_us']} us a call", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
