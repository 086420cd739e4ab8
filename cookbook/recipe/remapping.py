"""GPC-aware cluster remapping: a table that gives neighbouring tiles to clusters of one GPC, made once a device.

`cookbook copy` writes what a recipe uses of this text into the copied file.
"""

from collections.abc import Sequence

import torch

REMAPS: dict[tuple, torch.Tensor] = {}  # by device, GPC of each cluster, and length of a group


def remapping(gpcs: Sequence, together: int) -> list[int]:
    """The number of the first cluster tile of each cluster, given its GPC: `together` consecutive numbers are of one
    GPC, as long as it has clusters; those that fill no group come last."""
    groups, rest = [], []
    for gpc in dict.fromkeys(gpcs):
        members = [cluster for cluster, each in enumerate(gpcs) if each == gpc]
        full = len(members) // together * together
        groups, rest = groups + members[:full], rest + members[full:]
    order = groups + rest
    return sorted(range(len(order)), key=order.__getitem__)  # for each cluster, its place in that order


def remap_table(device: int, gpcs: tuple, together: int) -> int:
    """The address of `remapping` as a table of Int32 on the device; 0 (no table) if there is none yet and a graph is
    being captured, which allows no copy to the device."""
    key = device, gpcs, together
    if key not in REMAPS:
        if torch.cuda.is_current_stream_capturing():
            return 0
        stream, table = torch.cuda.Stream(device), remapping(gpcs, together)  # of its own: no work is waited for
        with torch.cuda.stream(stream):
            REMAPS[key] = torch.tensor(table, dtype=torch.int32, device=torch.device("cuda", device))
        stream.synchronize()  # kernels read the table without waiting for anything
    return REMAPS[key].data_ptr()
