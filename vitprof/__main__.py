"""The command `vitprof`, and `python -m vitprof`."""

import sys

from vitprof.program import install_core


def main() -> None:
    """Runs the command line. Exits with what to install where a package is missing."""
    try:
        from vitprof import cli
    except ModuleNotFoundError as error:
        if (error.name or "vitprof").partition(".")[0] == "vitprof":
            raise
        sys.exit(f"vitprof: the package {error.name} is not installed: {install_core()}")
    except KeyboardInterrupt:  # importing the commands takes a second; nothing has begun yet
        sys.exit(130)
    cli.main()


if __name__ == "__main__":
    main()
