"""A program that keeps a CPU core busy until its standard input ends, because its parent closed it or has exited.

It is run as a file and imports nothing of vitprof. It prints "." when it is ready, and starts when it receives a byte.
"""

import os
import sys
import threading


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    print(".", end="", flush=True)  # noqa: T201
    if sys.stdin.buffer.read(1):
        threading.Thread(target=_end_with_input, daemon=True).start()
        while True:
            pass
