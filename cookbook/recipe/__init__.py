"""Parts that recipes are made with: the host side that all share, and the file that a copy of one is."""
