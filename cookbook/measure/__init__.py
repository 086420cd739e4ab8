"""Measurements on a GPU, and their records."""
