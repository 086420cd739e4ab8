"""What a recipe is made with: the host side that all of them share, and the file that a copy of one is."""
