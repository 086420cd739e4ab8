"""Finds recipes, compiles them, checks them against torch.matmul, times them and keeps the records."""
