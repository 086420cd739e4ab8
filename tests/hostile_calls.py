"""A valid call of every public function of the library, for the hostile suite to spoil one argument at a time.

`CALLS` gives the arguments by dotted name, made anew each time; `self` is the object of a method, and what stands for
`*args` is one such argument. `TAKES` says which odd-looking values are right to be answered, and why.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from cookbook import access, atoms, draw
from cookbook.layouts import Layout, SmemLayout, TiledCopyTV
from cookbook.model import (
    BlackwellDescriptor,
    InstructionDescriptor,
    MatrixDescriptor,
    SharedMemory,
    TensorMemory,
    TmemAddress,
)
from cookbook.solve import design, instructions
from cookbook.solve.patterns import Banks, Block, Span
from cookbook.swizzle import Swizzle

LANES = np.arange(32)
PLAIN = Layout((16, 64), (64, 1))
SW128 = SmemLayout(Layout((8, 64), (64, 1)), Swizzle(3, 4, 3), 16)
K_SW128 = atoms.atom("K_SW128", 16)
OFFSETS = np.arange(32 * 32).reshape(32, 32)
COPY = TiledCopyTV(Layout((32, 8), (1, 32)), Layout((32, 8), (1, 32)), (32, 8))
COPIED = SmemLayout(Layout((32, 8), (8, 1)), Swizzle(0, 4, 3), 16)
HOPPER = MatrixDescriptor(0, 16, 1024, 128)
BLACKWELL = BlackwellDescriptor(0, 16, 1024, 128)
LD = instructions.Instruction("ldmatrix.x4", 16, 16)
OUT = Path(tempfile.gettempdir()) / "cookbook_hostile.svg"
ORDER = [(m, n) for m in range(4) for n in range(4)]


def memory(size: int = 8192) -> SharedMemory:
    """Zeros, which are numbers in every format."""
    made = SharedMemory(size)
    made.view(np.uint8)[:] = 0
    return made


def tensor_memory(columns: int = 64) -> TensorMemory:
    made = TensorMemory()
    made.alloc(columns)
    made.write(np.arange(128)[:, None], np.arange(columns), np.zeros((128, columns), np.uint32))
    return made


def scale_atom() -> dict[str, Any]:
    from cookbook.model.scale_factors import atom_offsets

    words, copy = np.arange(128), np.arange(4)
    lane = words % 32 + 32 * copy[:, None]
    source = (words % 32 * 16 + words // 32 * 4)[None, :, None] + np.arange(4)
    target = ((lane << 18) + words // 32 * 4)[..., None] + np.arange(4)
    source = np.broadcast_to(source, target.shape)
    flat = {"source": source.reshape(-1).copy(), "target": target.reshape(-1)}
    return {"offsets": atom_offsets(128, 4), "block": 32, "per_step": 1} | flat


def tmem_addresses() -> np.ndarray:
    return (np.arange(128)[:, None] << 16) + np.arange(64)


def unsolvable(*request: Any, **memory: int) -> Any:
    """The proof that a request has no answer."""
    try:
        design.solve(*request, **memory)
    except design.Unsolvable as error:
        return error.proof
    raise AssertionError("it is solvable")


def layouts() -> Layout:
    import cutlass.cute as cute

    return cute.make_layout((4, 8))


CALLS: dict[str, Any] = {
    "cookbook.access.checked_lanes": lambda: {"addresses": 4 * LANES, "width": 4, "name": "addresses"},
    "cookbook.access.copy_addresses": lambda: {"layout": COPIED, "copy": COPY, "side": "src", "stage": 0},
    "cookbook.access.cp_async": lambda: {"addresses": 16 * LANES, "width": 16},
    "cookbook.access.ldmatrix": lambda: {"row_addresses": 16 * LANES, "num": 4},
    "cookbook.access.stmatrix": lambda: {"row_addresses": 16 * LANES, "num": 2},
    "cookbook.access.ldst": lambda: {"addresses": 4 * LANES, "width": 4},
    "cookbook.access.of_copy": lambda: {
        "layout": COPIED,
        "copy": COPY,
        "side": "src",
        "kind": "ldst",
        "warp": 0,
        "stage": 0,
    },
    "cookbook.atoms.Atom": lambda: {"name": "K_SW128", "major": "K", "layout": SW128, "reason": "so"},
    "cookbook.atoms.atom": lambda: {"name": "K_SW128", "element_bits": 16},
    "cookbook.atoms.cute_code": lambda: {"atom": K_SW128, "shape": (64, 64), "order": "column"},
    "cookbook.atoms.descriptor": lambda: {
        "layout": SW128,
        "major": "K",
        "arch": "sm_100",
        "rows": 8,
        "origin": (0, 16),
        "base": 1024,
    },
    "cookbook.atoms.reader": lambda: {"arch": "sm_80", "major": "MN", "element_bits": 16},
    "cookbook.atoms.select": lambda: {"major": "K", "element_bits": 16, "tile": (128, 64), "arch": "sm_90a"},
    "cookbook.atoms.tile": lambda: {"atom": K_SW128, "shape": (64, 64), "order": "row"},
    "cookbook.atoms.tma_mode": lambda: {"swizzle": Swizzle(3, 4, 3)},
    "cookbook.banks.wavefronts": lambda: {
        "addresses": 16 * LANES,
        "width": 16,
        "load": False,
        "sources": 16 * LANES,
        "past_l1": True,
    },
    "cookbook.descriptors.describe": lambda: {
        "layout": SW128,
        "major": "K",
        "hopper": True,
        "rows": 8,
        "origin": (0, 16),
        "base": 1024,
    },
    "cookbook.descriptors.field_table": lambda: {"descriptor": HOPPER},
    "cookbook.solve.design.column_swizzle": lambda: {"row_elements": 64, "element_bits": 16, "vector_elements": 8},
    "cookbook.solve.design.kernel_code": lambda: {"layout": SW128},
    "cookbook.solve.design.column_code": lambda: {"swizzle": Swizzle(3, 3, 3), "row_elements": 64, "element_bits": 16},
    "cookbook.solve.design.column_counts": lambda: {
        "swizzle": Swizzle(3, 3, 3),
        "row_elements": 64,
        "element_bits": 16,
        "vector_elements": 8,
    },
    "cookbook.solve.design.phases_in": lambda: {
        "tile": (32, 32),
        "element_bits": 32,
        "access": Block(32, 1),
        "banks": Banks(),
    },
    "cookbook.solve.design.solve": lambda: {
        "tile": (8, 8),
        "element_bits": 32,
        "accesses": [(1, 8), (8, 1)],
        "vector_elements": 1,
        "banks": 8,
        "bank_bytes": 4,
    },
    "cookbook.solve.design.wavefronts_of": lambda: {
        "offsets": OFFSETS,
        "element_bits": 32,
        "access": (32, 1),
        "banks": Banks(),
    },
    "cookbook.draw.accesses.access_view": lambda: {"access": access.ldst(4 * LANES, 4), "title": "t"},
    "cookbook.draw.accesses.worst_place": lambda: {"offsets": OFFSETS, "element_bits": 32, "access": Block(32, 1)},
    "cookbook.draw.atoms.atom_orders": lambda: {"layouts": {"K": SW128}, "columns": 2, "title": "t", "tiles": True},
    "cookbook.draw.atoms.atom_tiling": lambda: {
        "tilings": {"a": atoms.tile(K_SW128, (16, 64))},
        "atom": (8, 64),
        "title": "t",
    },
    "cookbook.draw.boxes.tma_box": lambda: {
        "shape": (12, 96),
        "origin": (8, 64),
        "box": (8, 64),
        "element_bits": 16,
        "bits": 3,
        "title": "t",
    },
    "cookbook.draw.panels.beside": lambda: {"pictures": [draw.truth_tables()], "title": "t", "columns": 2},
    "cookbook.draw.paths.data_path": lambda: {"architecture": "hopper", "title": "t"},
    "cookbook.draw.roofline.roofline": lambda: {
        "peak": 800.0,
        "bandwidth": 4000.0,
        "points": {"a": (100.0, 300.0)},
        "title": "t",
        "note": "n",
    },
    "cookbook.draw.tiles.gemm_tiles": lambda: {
        "mnk": (512, 512, 256),
        "cta": (128, 128, 64),
        "warps": (2, 2),
        "instruction": (16, 8, 16),
        "title": "t",
        "of": "warp",
    },
    "cookbook.draw.timeline.barriers": lambda: {
        "stages": 2,
        "k_tiles": 4,
        "load_time": 3,
        "math_time": 1,
        "title": "t",
    },
    "cookbook.draw.timeline.stages_chart": lambda: {
        "k_tiles": 8,
        "load_time": 3,
        "math_time": 1,
        "most": 3,
        "title": "t",
    },
    "cookbook.draw.xor.truth_tables": lambda: {"operations": ["xor", "and"], "title": "t"},
    "cookbook.draw.xor.xor_column": lambda: {"col": 1, "rows": 8, "title": "t"},
    "cookbook.draw.bits.bit_fields": lambda: {"fields": [draw.Field("a", 0, 4, 3)], "width": 8, "title": "t"},
    "cookbook.draw.bits.gf2_matrix": lambda: {
        "matrix": Swizzle(1, 0, 1).matrix(2),
        "marked": {0: "bank"},
        "inputs": ["a", "b"],
        "asked": [1],
        "title": "t",
    },
    "cookbook.draw.charts.bar_chart": lambda: {
        "bars": [draw.Bar("g", "ours", 1.0, 0.5, 1.5, "n")],
        "unit": "u",
        "title": "t",
        "highlight": "ours",
        "ratios": True,
        "meaning": "m",
        "colours": {"ours": "#d9700c"},
    },
    "cookbook.draw.charts.line_chart": lambda: {
        "lines": {"a": [draw.Point(1.0, 2.0), draw.Point(2.0, 3.0, 1.0, 4.0)]},
        "unit": "u",
        "title": "t",
        "x_title": "x",
        "limit": "a",
        "colours": {"a": "#d9700c"},
    },
    "cookbook.draw.clusters.cluster_view": lambda: {"clusters": {"a": (2, 1)}, "tile": (128, 256), "title": "t"},
    "cookbook.draw.crossbar.crossbar": lambda: {"words": [0, 8, 3], "banks": 8, "title": "t", "animated": True},
    "cookbook.draw.crossbar.wavefronts": lambda: {"words": [0, 8, 3], "banks": 8},
    "cookbook.draw.flow.flow": lambda: {
        "stops": [draw.Stop("mA", "t", "k"), draw.Stop("gA", "t", "k")],
        "arrows": ["tile it"],
        "title": "t",
        "kinds": ["k"],
    },
    "cookbook.draw.fragments.ldmatrix_view": lambda: {"mn_major": True, "trans": True, "title": "t"},
    "cookbook.draw.fragments.tv_view": lambda: {
        "tv": Layout((4, 2), (1, 4)),
        "tile": (4, 2),
        "axes": ("M", "K"),
        "title": "t",
    },
    "cookbook.draw.frames.animate": lambda: {"frames": ["<g/>", "<g/>"], "seconds": 1.0, "still": -1},
    "cookbook.draw.frames.build_up": lambda: {"frames": ["<g/>", "<g/>"], "seconds": 1.0},
    "cookbook.draw.grids.before_after": lambda: {
        "before": OFFSETS[:8, :8] % 64,
        "after": PLAIN,
        "element_bits": 32,
        "banks": 8,
        "label": "bank",
        "mark": [(0, 0), (1, 0)],
        "titles": ("a", "b"),
        "title": "t",
    },
    "cookbook.draw.grids.layout_grid": lambda: {
        "layout": SW128,
        "element_bits": 16,
        "banks": 32,
        "label": "hex",
        "mark": [(0, 0), (1, 0)],
        "title": "t",
    },
    "cookbook.draw.interleaving.interleaving": lambda: {
        "moments": [draw.Moment("w", "write", "line 3"), draw.Moment("v", "read", "line 4")],
        "title": "t",
        "arrows": [(0, 1)],
        "note": "n",
    },
    "cookbook.draw.lanes.lanes": lambda: {
        "rows": {"a": [draw.Span(0.0, 1.0, "l", "k")]},
        "title": "t",
        "unit": "u",
        "note": "n",
    },
    "cookbook.draw.layouts.bank_grid": lambda: {
        "smem_layout": SW128,
        "rows": 8,
        "cols": 4,
        "unit": "chunk",
        "label": "byte",
        "axes": ("M", "K"),
        "title": "t",
    },
    "cookbook.draw.layouts.chunk_by_slot": lambda: {"starts": 16 * np.arange(16)},
    "cookbook.draw.layouts.swizzle_view": lambda: {"smem_layout": SW128, "lines": 8, "title": "t"},
    "cookbook.draw.numbers.number_grid": lambda: {
        "table": [[0, 1], [2, 3]],
        "title": "t",
        "colours": [[0, 1], [1, 0]],
        "mark": [(1, 0)],
        "note": "n",
    },
    "cookbook.draw.masks.swizzle_bits": lambda: {
        "swizzle": Swizzle(3, 4, 3),
        "n": 12,
        "fields": {"byte": 4, "row": 6},
        "title": "t",
    },
    "cookbook.draw.pairs.pair_view": lambda: {"clusters": {"a": (2, 1)}, "half": (128, 128), "title": "t"},
    "cookbook.draw.raster.tile_order": lambda: {
        "orders": {"rows": ORDER},
        "wave": 4,
        "tile": (128, 256),
        "show": 1,
        "columns": 2,
        "title": "t",
    },
    "cookbook.draw.scales.scale_atom": lambda: scale_atom() | {"title": "t"},
    "cookbook.draw.svg.Picture": lambda: {"svg": "<svg/>"},
    "cookbook.draw.svg.Picture.save": lambda: {"self": draw.Picture("<svg/>"), "path": OUT},
    "cookbook.draw.svg.picture": lambda: {
        "width": 10.0,
        "height": 10.0,
        "title": "t",
        "description": "d",
        "elements": ["<g/>"],
        "notes": {4.0: "n"},
    },
    "cookbook.draw.timeline.pipeline": lambda: {
        "stages": 2,
        "k_tiles": 4,
        "load_time": 3,
        "math_time": 1,
        "title": "t",
    },
    "cookbook.draw.timeline.schedule": lambda: {"stages": 2, "k_tiles": 4, "load_time": 3, "math_time": 1},
    "cookbook.draw.tmem.tensor_memory": lambda: {"addresses": tmem_addresses(), "piece": 32, "title": "t"},
    "cookbook.draw.toy.swizzle_progress": lambda: {
        "place": lambda r, c: (r, c ^ r),
        "n": 4,
        "column": 1,
        "title": "t",
    },
    "cookbook.draw.toy.toy_transpose": lambda: {
        "store": lambda r, c: (r, c ^ r),
        "load": lambda r, c: (c, c ^ r),
        "n": 4,
        "step": 2,
        "title": "t",
    },
    "cookbook.draw.toy.transpose_steps": lambda: {
        "store": lambda r, c: (r, c),
        "load": lambda r, c: (c, r),
        "n": 4,
    },
    "cookbook.gf2.annihilator": lambda: {"vectors": [3], "n": 3},
    "cookbook.gf2.echelon": lambda: {"vectors": [3, 6, 5]},
    "cookbook.gf2.kernel": lambda: {"images": [1, 2, 3]},
    "cookbook.gf2.rank": lambda: {"matrix": np.array([[1, 1], [0, 1]])},
    "cookbook.gf2.rank_of_ints": lambda: {"vectors": [3, 6, 5]},
    "cookbook.gf2.span": lambda: {"vectors": [1, 4]},
    "cookbook.solve.instructions.Instruction": lambda: {
        "name": "ld128",
        "rows": 8,
        "columns": 32,
        "row_step": 1,
        "column_step": 1,
        "down": True,
    },
    **{
        f"cookbook.solve.instructions.Instruction.{name}": lambda: {"self": LD, "tile": (64, 64), "element_bits": 16}
        for name in ("check", "offsets", "basis", "phase", "starts")
    },
    **{
        f"cookbook.solve.instructions.Instruction.{name}": lambda: {"self": LD, "element_bits": 16}
        for name in ("vector", "lane_places")
    },
    "cookbook.solve.instructions.Instruction.access": lambda: {
        "self": LD,
        "byte_offsets": 2 * OFFSETS,
        "element_bits": 16,
        "row": 0,
        "column": 8,
    },
    "cookbook.solve.instructions.as_pattern": lambda: {"value": (8, 4), "name": "value"},
    "cookbook.solve.instructions.parse": lambda: {"text": "ld128@8x32", "name": "text"},
    "cookbook.solve.irregular.ExhaustionProof.check": lambda: {
        "self": unsolvable((6, 10), 32, [(1, 8), (6, 1), (2, 4)], banks=8),
        "progress": None,
    },
    "cookbook.layouts.Layout": lambda: {"shape": (8, (2, 4)), "stride": (8, (1, 2))},
    "cookbook.layouts.Layout.__call__": lambda: {"self": Layout(8, 2), "coord": 3},
    "cookbook.layouts.SmemLayout": lambda: {"outer": PLAIN, "swizzle": Swizzle(3, 4, 3), "element_bits": 16},
    "cookbook.layouts.TiledCopyTV": lambda: {"src_tv": COPY.src_tv, "dst_tv": COPY.dst_tv, "tiler_mn": (32, 8)},
    "cookbook.layouts.TiledMmaTV": lambda: {
        "a": PLAIN,
        "b": PLAIN,
        "c": PLAIN,
        "tiler_mnk": (16, 8, 16),
        "shape_mnk": (16, 8, 16),
        "majors": ("K", "MN"),
    },
    "cookbook.layouts.evaluate": lambda: {"fn": layouts, "element_bits": 16, "arch": "sm_90a"},
    "cookbook.model.cp_async.cp_async": lambda: {
        "smem": memory(),
        "dst": 16 * LANES,
        "memory": np.arange(1024, dtype=np.int32),
        "src": 16 * LANES,
        "src_size": 8,
        "predicate": True,
    },
    "cookbook.model.fp8_sums.summed": lambda: {"products": np.ones((2, 64)), "promoted_after": 32},
    "cookbook.model.fp8_sums.share_lost": lambda: {"k": 64},
    "cookbook.model.fp8_sums.predicted_error": lambda: {"k": 64, "promoted_after": 32, "sums": 10},
    "cookbook.model.formats.from_float32": lambda: {"values": np.array([1.5, 2.0], np.float32), "dtype": "bfloat16"},
    "cookbook.model.formats.to_float32": lambda: {"bits": np.array([1, 2], np.uint16), "dtype": "float16"},
    "cookbook.model.ldmatrix.ldmatrix": lambda: {
        "smem": memory(),
        "row_addresses": 16 * LANES,
        "num": 4,
        "trans": True,
    },
    "cookbook.model.ldmatrix.ldmatrix_m16n16": lambda: {"smem": memory(), "row_addresses": 16 * LANES, "num": 2},
    "cookbook.model.ldmatrix.stmatrix": lambda: {
        "smem": memory(),
        "row_addresses": 16 * LANES,
        "registers": np.zeros((32, 4, 2), np.uint16),
        "trans": True,
    },
    "cookbook.model.mma_sync.mma_m16n8k16": lambda: {
        "a": np.zeros((32, 8), np.uint16),
        "b": np.zeros((32, 4), np.uint16),
        "c": np.zeros((32, 4), np.float32),
        "dtype": "float16",
    },
    "cookbook.model.mma_sync.mma_m16n8k32": lambda: {
        "a": np.zeros((32, 16), np.uint8),
        "b": np.zeros((32, 8), np.uint8),
        "c": np.zeros((32, 4), np.float32),
        "dtype": "e4m3",
    },
    "cookbook.model.scale_factors.atom_offsets": lambda: {"rows": 128, "factors": 4},
    "cookbook.model.scale_factors.read_scales": lambda: {
        "tmems": [tensor_memory()],
        "m": 128,
        "n": 64,
        "count": 1,
        "scale_a": 0,
        "scale_b": 4,
        "a_id": 0,
        "b_id": 0,
    },
    "cookbook.model.scale_factors.to_atoms": lambda: {"scales": np.ones((128, 4), np.uint8)},
    "cookbook.model.small_floats.decode": lambda: {"bits": np.array([1, 2], np.uint8), "name": "e2m1"},
    "cookbook.model.small_floats.encode": lambda: {"values": np.array([1.5], np.float32), "name": "e4m3"},
    "cookbook.model.small_floats.encode_ue8m0": lambda: {"values": np.array([1.5], np.float32), "up": True},
    "cookbook.model.small_floats.pack": lambda: {"codes": np.array([1, 2], np.uint8), "bits": 4},
    "cookbook.model.small_floats.unpack": lambda: {"packed": np.array([1, 2], np.uint8), "bits": 4},
    "cookbook.model.smem.SharedMemory": lambda: {"size_bytes": 1024},
    "cookbook.model.smem.SharedMemory.view": lambda: {"self": memory(), "dtype": np.uint16},
    "cookbook.model.smem.SharedMemory.read": lambda: {
        "self": memory(),
        "addresses": 16 * LANES,
        "count": 8,
        "dtype": np.uint16,
    },
    "cookbook.model.smem.SharedMemory.write": lambda: {
        "self": memory(),
        "addresses": 16 * LANES,
        "values": np.zeros((32, 8), np.uint16),
    },
    "cookbook.model.smem_descriptor.BlackwellDescriptor": lambda: {
        "start": 0,
        "lbo": 16,
        "sbo": 1024,
        "mode": 128,
        "together": 16,
        "base_offset": 0,
        "lbo_absolute": False,
    },
    "cookbook.model.smem_descriptor.BlackwellDescriptor.decode": lambda: {"word": BLACKWELL.encode()},
    "cookbook.model.smem_descriptor.canonical_offsets": lambda: {
        "descriptor": BLACKWELL,
        "major": "K",
        "shape": (64, 16),
        "element_bits": 16,
    },
    "cookbook.model.smem_descriptor.operand_bytes": lambda: {
        "smem": memory(),
        "descriptor": BLACKWELL,
        "rows": 64,
        "major": "K",
        "element_bits": 16,
        "width": 32,
    },
    "cookbook.model.smem_descriptor.swizzle_of": lambda: {"descriptor": BLACKWELL},
    "cookbook.model.tcgen05.InstructionDescriptor": lambda: {
        "kind": "f16",
        "m": 128,
        "n": 64,
        "a_type": "bfloat16",
        "b_type": "bfloat16",
        "d_type": "float32",
        "a_major": "K",
        "b_major": "MN",
        "a_negate": False,
        "b_negate": True,
        "scale_type": "",
        "a_sf_id": 0,
        "b_sf_id": 0,
    },
    "cookbook.model.tcgen05.InstructionDescriptor.check": lambda: {
        "self": InstructionDescriptor("f16", 128, 64, "bfloat16"),
        "cta_group": 1,
        "a_in_tmem": False,
    },
    "cookbook.model.tcgen05.InstructionDescriptor.decode": lambda: {
        "word": InstructionDescriptor("f16", 128, 64, "bfloat16").encode(),
        "kind": "f16",
    },
    "cookbook.model.tcgen05.d_places": lambda: {"m": 128, "n": 64, "cta_group": 1},
    "cookbook.model.tcgen05.mma": lambda: {
        "smem": memory(16384),
        "tmem": tensor_memory(),
        "d": 0,
        "a": BLACKWELL,
        "b": BLACKWELL,
        "idesc": InstructionDescriptor("mxf8f6f4", 128, 32, "e4m3"),
        "accumulate": True,
        "scale_a": 32,
        "scale_b": 40,
        "block": 32,
    },
    "cookbook.model.tma.swizzle_mode": lambda: {"swizzle": Swizzle(3, 4, 3)},
    **{
        f"cookbook.model.tma.{name}": lambda: {
            "smem": memory(),
            "base": 1024,
            "tensor": np.zeros((16, 64), np.int16),
            "origin": (0, 0),
            "box": (8, 64),
            "mode": 128,
        }
        for name in ("tma_load", "tma_store")
    },
    "cookbook.model.tmem.TensorMemory.alloc": lambda: {"self": TensorMemory(), "columns": 64},
    "cookbook.model.tmem.TensorMemory.dealloc": lambda: {
        "self": tensor_memory(),
        "address": TmemAddress(0, 0),
        "columns": 64,
    },
    "cookbook.model.tmem.TensorMemory.read": lambda: {"self": tensor_memory(), "lanes": LANES, "columns": LANES},
    "cookbook.model.tmem.TensorMemory.write": lambda: {
        "self": tensor_memory(),
        "lanes": LANES,
        "columns": LANES,
        "values": np.zeros(32, np.float32),
    },
    "cookbook.model.tmem.TmemAddress.of": lambda: {"address": 5 << 16 | 3},
    "cookbook.model.tmem.TmemAddress.right": lambda: {"self": TmemAddress(0, 3), "columns": 4},
    "cookbook.model.tmem.cp": lambda: {
        "smem": memory(16384),
        "tmem": tensor_memory(),
        "address": 0,
        "descriptor": BLACKWELL,
        "shape": "128x256b",
        "multicast": "",
    },
    "cookbook.model.tmem.ld": lambda: {
        "tmem": tensor_memory(),
        "address": 16 << 16,
        "warp": 0,
        "shape": "16x32bx2",
        "num": 2,
        "split": 4,
    },
    "cookbook.model.tmem.ld_coords": lambda: {"shape": "16x32bx2", "num": 2, "split": 4},
    "cookbook.model.tmem.st": lambda: {
        "tmem": tensor_memory(),
        "address": 0,
        "warp": 0,
        "values": np.zeros((32, 2), np.uint32),
        "shape": "16x32bx2",
        "num": 2,
        "split": 4,
    },
    "cookbook.model.wgmma.MatrixDescriptor": lambda: {
        "start": 0,
        "lbo": 16,
        "sbo": 1024,
        "mode": 128,
        "base_offset": 0,
    },
    "cookbook.model.wgmma.MatrixDescriptor.decode": lambda: {"word": HOPPER.encode()},
    "cookbook.model.wgmma.d_coords": lambda: {"n": 64},
    "cookbook.model.wgmma.operand_addresses": lambda: {"descriptor": HOPPER, "rows": 64, "major": "K"},
    "cookbook.model.wgmma.operand_descriptors": lambda: {
        "layout": atoms.tile(K_SW128, (64, 64)),
        "rows": 64,
        "base": 1024,
        "major": "K",
    },
    "cookbook.model.wgmma.wgmma": lambda: {
        "smem": memory(16384),
        "a": HOPPER,
        "b": HOPPER,
        "d": np.zeros((128, 32), np.float32),
        "dtype": "float16",
        "major_a": "K",
        "major_b": "K",
    },
    "cookbook.solve.patterns.Banks": lambda: {"count": 32, "bytes": 4},
    "cookbook.solve.patterns.Block": lambda: {"rows": 8, "columns": 4, "row_step": 2, "column_step": 1},
    "cookbook.solve.patterns.Block.vector": lambda: {"self": Block(8, 4), "tile": (32, 32), "element_bits": 32},
    "cookbook.solve.patterns.Block.check": lambda: {"self": Block(8, 4), "tile": (32, 32)},
    "cookbook.solve.patterns.Block.basis": lambda: {"self": Block(8, 4), "tile": (32, 32)},
    "cookbook.solve.patterns.Span": lambda: {"offsets": (1, 33)},
    "cookbook.solve.patterns.Span.basis": lambda: {"self": Span((1, 33)), "tile": (32, 32)},
    "cookbook.solve.proofs.CountingProof.check": lambda: {
        "self": unsolvable((16, 32), 8, [Span((17, 34, 64, 128, 256))], vector_elements=16),
        "progress": None,
    },
    "cookbook.solve.proofs.TreeProof.check": lambda: {
        "self": unsolvable((2, 4), 32, [Span((1, 2)), Span((1, 4)), Span((1, 6))], banks=4),
        "progress": None,
    },
    "cookbook.swizzle.Swizzle": lambda: {"bits": 3, "base": 4, "shift": 3},
    "cookbook.swizzle.Swizzle.__call__": lambda: {"self": Swizzle(3, 4, 3), "offset": 144},
    "cookbook.swizzle.Swizzle.in_elements": lambda: {"self": Swizzle(3, 4, 3), "element_bits": 16},
    "cookbook.swizzle.Swizzle.in_bytes": lambda: {"self": Swizzle(3, 4, 3), "element_bits": 16},
    "cookbook.swizzle.Swizzle.both": lambda: {"self": Swizzle(3, 4, 3), "element_bits": 16},
    "cookbook.swizzle.Swizzle.matrix": lambda: {"self": Swizzle(3, 4, 3), "n": 12},
    "cookbook.swizzle.Swizzle.from_cute": lambda: {"swizzle": FakeCute()},
}


class FakeCute:
    """What `cute.Swizzle` shows."""

    num_bits, num_base, num_shift = 3, 4, 3


NONE = ("[]", "()", "{}", "empty array")
TEXT = ("'x'", "''", "with a ?")
TAKES: dict[tuple[str, str], tuple[str, ...]] = {
    # nothing spans the space {0}, and equal vectors are as good as one
    **{
        (f"cookbook.gf2.{name}", argument): ("[]", "()", "empty array", "(2**62, 2**62)")
        for name, argument in (
            ("annihilator", "vectors"),
            ("echelon", "vectors"),
            ("kernel", "images"),
            ("rank_of_ints", "vectors"),
            ("span", "vectors"),
        )
    },
    # how a message names the argument is free
    ("cookbook.access.checked_lanes", "name"): TEXT,
    ("cookbook.solve.instructions.as_pattern", "name"): TEXT,
    ("cookbook.solve.instructions.parse", "name"): TEXT,
    # a function that is not one for `evaluate` raises what it raises
    ("cookbook.layouts.evaluate", "fn"): ("a function", "a class"),
    # an offset of 62 bits is one; of no offsets there are no swizzled ones
    ("cookbook.swizzle.Swizzle.__call__", "offset"): ("2**62", "empty array"),
    # a float16 may be negative, or too large; of no values there are no codes
    **{
        (f"cookbook.model.{name}", argument): ("[]", "()", "empty array", "(-8, 8)", "(2**62, 2**62)")
        for name, argument in (
            ("formats.from_float32", "values"),
            ("small_floats.encode", "values"),
            ("small_floats.encode_ue8m0", "values"),
            ("small_floats.pack", "codes"),
            ("small_floats.unpack", "packed"),
            ("smem.SharedMemory.read", "addresses"),
        )
    },
    # a box of a load may begin before the tensor, a column lie to the left; bit 62 of a descriptor is the mode
    ("cookbook.model.tma.tma_load", "origin"): ("(-8, 8)",),
    ("cookbook.model.tmem.TmemAddress.right", "columns"): ("-1",),
    ("cookbook.model.wgmma.MatrixDescriptor.decode", "word"): ("2**62",),
    ("cookbook.model.wgmma.wgmma", "a"): ("2**62",),
    ("cookbook.model.wgmma.wgmma", "b"): ("2**62",),
    # nothing marked, no field, no word asked for: a picture, or an answer, all the same
    ("cookbook.draw.bits.bit_fields", "fields"): NONE,
    ("cookbook.draw.bits.gf2_matrix", "marked"): NONE,
    ("cookbook.draw.charts.bar_chart", "colours"): NONE,  # no name has a colour of its own
    ("cookbook.draw.charts.line_chart", "colours"): NONE,
    ("cookbook.draw.bits.gf2_matrix", "asked"): NONE,
    ("cookbook.draw.grids.before_after", "mark"): NONE,
    ("cookbook.draw.interleaving.interleaving", "arrows"): NONE,
    ("cookbook.draw.grids.layout_grid", "mark"): NONE,
    ("cookbook.draw.numbers.number_grid", "mark"): NONE,
    ("cookbook.draw.masks.swizzle_bits", "fields"): NONE,
    ("cookbook.draw.svg.picture", "elements"): ("[]", "()", "empty array"),
    ("cookbook.draw.svg.picture", "notes"): NONE,
    ("cookbook.draw.crossbar.wavefronts", "words"): ("[]", "()", "empty array", "(2**62, 2**62)"),
    ("cookbook.draw.crossbar.crossbar", "words"): ("(2**62, 2**62)",),
    # text as it is
    ("cookbook.draw.svg.Picture", "svg"): TEXT,
    ("cookbook.draw.svg.picture", "description"): TEXT,
    # counted from the end
    ("cookbook.draw.toy.toy_transpose", "step"): ("-1",),
    # what another function raises is its own affair
    **{
        (f"cookbook.draw.toy.{name}", argument): ("a class", "a function")
        for name, argument in (
            ("swizzle_progress", "place"),
            ("toy_transpose", "store"),
            ("toy_transpose", "load"),
            ("transpose_steps", "store"),
            ("transpose_steps", "load"),
        )
    },
}
