"""The command `vitprof`, and `python -m vitprof`."""

import sys

from vitprof.program import install_core


def main() -> None:
    """Runs the command line; says what to install where that lacks a package."""
    try:
        from vitprof import cli
    except ModuleNotFoundError as error:
        if (error.name or "vitprof").partition(".")[0] == "vitprof":
            raise
        sys.exit(f"vitprof: the package {error.name} is not installed: {install_core()}")
    except KeyboardInterrupt:  # the commands take a second to import, and nothing has begun
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
