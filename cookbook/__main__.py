"""`python -m cookbook`: the `cookbook` command."""

from cookbook.cli import main

main()
