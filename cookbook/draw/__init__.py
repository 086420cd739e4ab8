"""Pictures of layouts, banks, pipelines and measurements, as SVG text with no plotting library.

Every function returns a `Picture`: a notebook shows it, `picture.save("x.svg")` writes it.
"""

from cookbook.draw.accesses import access_view
from cookbook.draw.charts import Bar, bar_chart
from cookbook.draw.crossbar import crossbar
from cookbook.draw.grids import before_after, layout_grid
from cookbook.draw.layouts import bank_grid, swizzle_view
from cookbook.draw.masks import swizzle_bits
from cookbook.draw.svg import Picture
from cookbook.draw.timeline import pipeline
from cookbook.draw.toy import swizzle_progress, toy_transpose

__all__ = [
    "Bar",
    "Picture",
    "access_view",
    "bank_grid",
    "bar_chart",
    "before_after",
    "crossbar",
    "layout_grid",
    "pipeline",
    "swizzle_bits",
    "swizzle_progress",
    "swizzle_view",
    "toy_transpose",
]
