"""`python -m cookbook.cli`: the `cookbook` command."""

from cookbook.cli.app import main

main()
