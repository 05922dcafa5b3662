"""The command `vitprof`, and `python -m vitprof`."""

import sys

from vitprof import descriptors, unwatched


def main() -> None:
    """Runs the command line. Where a package is missing it exits with what to install, and a script
    that was to be watched runs unwatched.
    """
    descriptors.occupy_standard_streams()
    try:
        from vitprof import cli
    except KeyboardInterrupt:
        # importing the commands takes a second; nothing has begun yet
        sys.exit(130)
    except Exception as error:
        _run_without(error)
    cli.main()


def _run_without(error: Exception) -> None:
    """Does what can be done where the command line cannot be imported. Raises the error where it is
    a defect of ours.
    """
    if script := unwatched.script_of(sys.argv[1:]):
        unwatched.print_line(f"not watching: {unwatched.why(error)}")
        unwatched.become(script)
    name = getattr(error, "name", None) or "vitprof"
    if not isinstance(error, ModuleNotFoundError) or name.partition(".")[0] == "vitprof":
        raise error
    sys.exit(f"vitprof: {unwatched.why(error)}")


if __name__ == "__main__":
    main()
