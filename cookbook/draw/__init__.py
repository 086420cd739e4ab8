"""Pictures of layouts, banks, pipelines and measurements, as SVG text with no plotting library.

Every function returns a `Picture`: a notebook shows it, `picture.save("x.svg")` writes it.
"""

from cookbook.draw.accesses import access_view
from cookbook.draw.atoms import atom_orders, atom_tiling
from cookbook.draw.bits import Field, bit_fields, gf2_matrix
from cookbook.draw.boxes import tma_box
from cookbook.draw.charts import Bar, Point, bar_chart, line_chart
from cookbook.draw.clusters import cluster_view
from cookbook.draw.crossbar import crossbar
from cookbook.draw.flow import Stop, flow
from cookbook.draw.fragments import ldmatrix_view, tv_view
from cookbook.draw.grids import before_after, layout_grid
from cookbook.draw.interleaving import Moment, interleaving
from cookbook.draw.lanes import Span, lanes
from cookbook.draw.layouts import bank_grid, swizzle_view
from cookbook.draw.masks import swizzle_bits
from cookbook.draw.numbers import number_grid
from cookbook.draw.pairs import pair_view
from cookbook.draw.panels import beside
from cookbook.draw.paths import data_path
from cookbook.draw.raster import tile_order
from cookbook.draw.roofline import roofline
from cookbook.draw.scales import scale_atom
from cookbook.draw.svg import Picture
from cookbook.draw.tiles import gemm_tiles
from cookbook.draw.timeline import barriers, pipeline, stages_chart
from cookbook.draw.tmem import tensor_memory
from cookbook.draw.toy import swizzle_progress, toy_transpose
from cookbook.draw.xor import truth_tables, xor_column

__all__ = [
    "Bar",
    "Field",
    "Moment",
    "Picture",
    "Point",
    "Span",
    "Stop",
    "access_view",
    "atom_orders",
    "atom_tiling",
    "bank_grid",
    "bar_chart",
    "barriers",
    "before_after",
    "beside",
    "bit_fields",
    "cluster_view",
    "crossbar",
    "data_path",
    "flow",
    "gemm_tiles",
    "gf2_matrix",
    "interleaving",
    "lanes",
    "layout_grid",
    "ldmatrix_view",
    "line_chart",
    "number_grid",
    "pair_view",
    "pipeline",
    "roofline",
    "scale_atom",
    "stages_chart",
    "swizzle_bits",
    "swizzle_progress",
    "swizzle_view",
    "tensor_memory",
    "tile_order",
    "tma_box",
    "toy_transpose",
    "truth_tables",
    "tv_view",
    "xor_column",
]
