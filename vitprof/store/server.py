"""Connections to a database server. One that does not answer is not waited for.

A driver waits for a server as long as the system does: minutes for one whose machine is gone, and
forever for one that was paused.
"""

import functools
import os
import time
from collections.abc import Generator, Mapping
from typing import Any

import sqlalchemy as sa

CONNECT_WITHIN_S = 5
"""Time (s) that each address of a server has to answer, unless the URL says otherwise (`connect_timeout`)."""
ANSWER_WITHIN_S = 30.0
"""How long (s) a server may be silent within a query."""
KEEP_ALIVE = {"keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3}
"""After 15 s without data the system asks every 5 s whether the machine of the server is still there, three
times (https://www.postgresql.org/docs/current/libpq-connect.html)."""
TIMEOUT = "timeout expired"
LIBPQ = ("postgresql+psycopg", "postgresql+psycopg2")
"""Drivers that know these parameters."""


def connect_arguments(url: sa.URL) -> dict[str, int]:
    """Returns the driver's arguments with which a connection does not outlive its server, but for those
    that `url` has.
    """
    if url.drivername not in LIBPQ:
        return {}
    arguments = {"connect_timeout": CONNECT_WITHIN_S, **KEEP_ALIVE}
    # milliseconds in which the server's machine must have received what was sent
    arguments["tcp_user_timeout"] = int(ANSWER_WITHIN_S * 1000)
    if "PGCONNECT_TIMEOUT" in os.environ:
        del arguments["connect_timeout"]
    return {name: value for name, value in arguments.items() if name not in url.query}


def limit_answers(engine: sa.Engine) -> None:
    """Makes the connections of an engine fail where the server is silent for `ANSWER_WITHIN_S`.

    Also where only the server was stopped, whose machine goes on answering. Of psycopg 3 only: no
    other driver has a place to do so.
    """
    if engine.dialect.driver == "psycopg":
        sa.event.listen(engine, "do_connect", _connect)


def wait_longer(db: sa.Connection, within_s: float) -> None:
    """Lets the queries of a connection take longer, such as those that change all rows of a table."""
    connection: Any = db.connection.driver_connection
    if hasattr(connection, "answer_within_s"):
        connection.answer_within_s = within_s


def is_unanswered(error: BaseException | None) -> bool:
    """Returns whether a driver's error says that the server did not answer in time: libpq's, psycopg's
    and that of a limited connection are worded alike.
    """
    return TIMEOUT in str(error)


def _connect(dialect: sa.Dialect, record: Any, arguments: Any, options: Mapping[str, Any]) -> Any:
    return _limited_connection().connect(*arguments, **options)


@functools.cache
def _limited_connection() -> Any:
    # here: a store in SQLite does not need it
    import psycopg

    class LimitedConnection(psycopg.Connection[Any]):
        """A connection that is closed, with an error, where the server is silent for too long."""

        answer_within_s = ANSWER_WITHIN_S

        def wait(self, gen: Any, *args: Any, **more: Any) -> Any:
            return super().wait(self._limited(gen), *args, **more)

        def _limited(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
            """Passes on what psycopg waits for, and what came of it: 0 while there is nothing."""
            until_s = time.monotonic() + self.answer_within_s
            try:
                wanted = next(steps)
                while True:
                    came = yield wanted
                    now_s = time.monotonic()
                    if came:
                        until_s = now_s + self.answer_within_s
                    elif now_s >= until_s:
                        # else the rollback that follows would wait for it, too
                        self.close()
                        raise psycopg.OperationalError(TIMEOUT)
                    wanted = steps.send(came)
            except StopIteration as over:
                return over.value

    return LimitedConnection
