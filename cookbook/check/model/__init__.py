"""Level "model": a recipe's layouts, simulated in numpy as the data path of a product."""
