"""A program that keeps a CPU core busy until its standard input ends: when its parent closes it, or is gone.

Run as a file: it imports nothing of vitprof. It says "." when it has begun.
"""

import os
import sys
import threading


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    threading.Thread(target=_end_with_input, daemon=True).start()
    print(".", end="", flush=True)  # noqa: T201
    while True:
        pass
