"""The command `vitprof`, and `python -m vitprof`."""

import os
import sys


def main() -> None:
    """Runs the command line. Where a package is missing it exits with what to install, and a script
    that was to be watched runs unwatched.
    """
    _find_the_standard_library_first()
    from vitprof import descriptors

    descriptors.occupy_standard_streams()
    try:
        from vitprof import cli
    except KeyboardInterrupt:
        # importing the commands takes a second; nothing has begun yet
        sys.exit(130)
    except Exception as error:
        _run_without(error)
    cli.main()


def _find_the_standard_library_first() -> None:
    """Keeps files on PYTHONPATH, which is the script's, and in the current directory from being
    taken for modules of the standard library: they would be executed, and nothing would start.
    """
    zipped = f"python{sys.version_info[0]}{sys.version_info[1]}.zip"
    folder = os.path.dirname(os.__file__)
    library = [
        path
        for path in sys.path
        if path == folder or os.path.basename(path) in ("lib-dynload", zipped)
    ]
    sys.path[:] = library + [path for path in sys.path if path not in library]


def _run_without(error: Exception) -> None:
    """Does what can be done where the command line cannot be imported. Raises the error where it is
    a defect of ours.
    """
    from vitprof import unwatched

    if script := unwatched.script_of(sys.argv[1:]):
        unwatched.print_line(f"not watching: {unwatched.why(error)}")
        unwatched.become(script)
    name = getattr(error, "name", None) or "vitprof"
    if not isinstance(error, ModuleNotFoundError) or name.partition(".")[0] == "vitprof":
        raise error
    sys.exit(f"vitprof: {unwatched.why(error)}")


if __name__ == "__main__":
    main()
