"""Steps of the ladders whose gain no GPU has timed yet: their pages say so. Empty it then."""

NOT_YET: set[str] = set()
