"""Find a layout for accesses: a closed form for columns, a search for the rest, proofs where there is none."""
