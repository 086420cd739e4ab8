"""`python -m cookbook`: the `cookbook` command."""

from cookbook.cli import main

if __name__ == "__main__":
    main()
