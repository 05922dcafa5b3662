"""`python -m vitprof`."""

from vitprof.cli import main

if __name__ == "__main__":
    main()
