"""`metrics`: counters of runs for Prometheus, at an address that it scrapes or in a file for node_exporter."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitprof.cli.common import terminal
from vitprof.config.bounds import PORT
from vitprof.errors import ConfigError, VitprofError
from vitprof.export import write_text
from vitprof.export.metrics import RunCollector, registry_of

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

PORT_HELP = "answer scrapes on this port until Ctrl-C, at /metrics"
FILE_HELP = "write the metrics to this file once, for node_exporter's textfile collector: it must end with .prom"
HOST_HELP = (
    "address to listen on; others than 127.0.0.1 can be read by whoever reaches this machine"
)
END_CHECK_S = 0.5
"""How often (s) to look whether it was asked to end."""


def give_metrics(
    context: typer.Context,
    port: Annotated[
        int | None, terminal.number("port", PORT, PORT_HELP, show_default=False)
    ] = None,
    textfile: Annotated[Path | None, typer.Option(help=FILE_HELP, show_default=False)] = None,
    host: Annotated[str, typer.Option(help=HOST_HELP)] = "127.0.0.1",
) -> None:
    """Give Prometheus the counters of the runs that go on or ended within the last hour."""
    if (port is None) == (textfile is None):
        raise ConfigError(
            "port", "none" if port is None else port, "give one of --port and --textfile"
        )
    if textfile is not None:
        terminal.refuse_given(context, ["host"], "it goes with --port")
    if textfile is not None and textfile.suffix != ".prom":
        raise ConfigError(
            "textfile", str(textfile), "node_exporter reads only files whose names end with .prom"
        )
    terminal.check_output(textfile, "textfile")
    with terminal.open_store() as store:
        collector = RunCollector(store)
        registry = registry_of(collector)
        if textfile is not None:
            from prometheus_client.exposition import generate_latest

            text = generate_latest(registry).decode()
            if collector.failure:
                raise VitprofError(collector.failure)
            write_text(textfile, text)
        elif port is not None:
            _serve(collector, registry, host, port)


def _until(stop: Callable[[], bool], collector: RunCollector) -> None:
    """Waits until asked to end; says when the store can be read no more, and when it can again."""
    failure = ""
    ended = threading.Event()
    while not stop() and not ended.wait(END_CHECK_S):
        if collector.failure != failure:
            failure = collector.failure
            terminal.remark(failure or "the run store can be read again")


def _serve(collector: RunCollector, registry: CollectorRegistry, host: str, port: int) -> None:
    """Answers scrapes until Ctrl-C or SIGTERM."""
    from prometheus_client.exposition import start_http_server

    with terminal.stop_requested() as stop:
        # what the store has already, before the first scrape: that must not take long
        collector.update()
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise ConfigError(
                "port", port, f"{host} cannot be listened on: {error.strerror or error}"
            ) from None
        terminal.remark(f"metrics are at http://{host}:{port}/metrics (Ctrl-C ends it)")
        _until(stop, collector)
        server.shutdown()
        server.server_close()
        thread.join()
