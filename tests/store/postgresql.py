"""A PostgreSQL server of the tests' own, on a socket in a temporary directory. Skipped where there is none."""

import glob
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

FOLDERS = os.pathsep.join(
    [os.environ.get("PATH", ""), *sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)]
)
PROGRAMS = {name: shutil.which(name, path=FOLDERS) for name in ("initdb", "pg_ctl")}


class Server:
    """Started and stopped as an operator does it. PostgreSQL refuses to run as root: then it runs as nobody."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._n = directory, 0
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user:
            os.chown(directory, pwd.getpwnam(self._user).pw_uid, -1)
        self._run(
            "initdb",
            "-D",
            str(directory / "data"),
            "-A",
            "trust",
            "-U",
            "vitprof",
            "--no-sync",
            "-E",
            "UTF8",
        )
        self.start()

    def start(self) -> None:
        options = f"-k {self._directory} -c listen_addresses= -c fsync=off"
        self._run("pg_ctl", "-D", str(self._directory / "data"), "-w", "-o", options, "start")

    def stop(self) -> None:
        """Ends it without a word to those who are connected."""
        self._run("pg_ctl", "-D", str(self._directory / "data"), "-w", "-m", "immediate", "stop")

    def processes(self) -> list[psutil.Process]:
        """The server's main process, and one for each connection and task of its own."""
        pid = (self._directory / "data" / "postmaster.pid").read_text().split()[0]
        main = psutil.Process(int(pid))
        return [main, *main.children()]

    def database(self) -> str:
        """Makes a database and returns its URL."""
        name = self._new("database")
        return f"postgresql+psycopg://vitprof@/{name}?host={self._directory}"

    def schema(self) -> str:
        """Makes a schema in the database `postgres` and returns a URL by which that is all there is.

        It takes 10 ms, a database a tenth of a second: for tests that need no more than empty tables.
        """
        name = self._new("schema")
        options = f"host={self._directory}&options=-csearch_path%3D{name}"
        return f"postgresql+psycopg://vitprof@/postgres?{options}"

    def _new(self, kind: str) -> str:
        import psycopg  # not for tests without it

        self._n += 1
        name = f"store{self._n}"
        with psycopg.connect(
            host=str(self._directory), user="vitprof", dbname="postgres", autocommit=True
        ) as connection:
            connection.execute(f"create {kind} {name}")
        return name

    def _run(self, name: str, *args: str) -> None:
        program = PROGRAMS[name]
        assert program is not None
        log = self._directory / "log"
        with log.open("ab") as out:
            kept = {"user": self._user} if self._user else {}
            subprocess.run(
                [program, *args],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd="/",
                **kept,
            )


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A server; skipped without its programs or the driver."""
    pytest.importorskip("psycopg")
    if not all(PROGRAMS.values()):
        pytest.skip("no PostgreSQL server is installed here")
    directory = Path(tempfile.mkdtemp(prefix="vitprof-pg-"))  # a socket's path may have 107 bytes
    made = Server(directory)
    yield made
    made.stop()
    shutil.rmtree(directory)
