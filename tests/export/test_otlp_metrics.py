"""Counters sent by OTLP: what a collector gets are those that Prometheus gets."""

import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.engine_fixtures import wait_until
from tests.export.test_metrics import N, add, some_steps, started
from vitprof.export.metrics import RunCollector
from vitprof.export.otlp_metrics import sender
from vitprof.store import RunStore


@pytest.fixture
def collector() -> Iterator[tuple[str, "queue.Queue[Any]"]]:
    """The address of a server that takes what is sent, and the metrics of each request by name."""
    got: queue.Queue[Any] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = ExportMetricsServiceRequest.FromString(
                self.rfile.read(int(self.headers["Content-Length"]))
            )
            (resource,) = asked.resource_metrics
            got.put(
                {
                    metric.name: metric
                    for scope in resource.scope_metrics
                    for metric in scope.metrics
                }
            )
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/metrics", got
    server.shutdown()
    server.server_close()
    thread.join()


def test_what_is_sent_are_the_counters_with_new_steps(store: RunStore, collector: Any) -> None:
    address, got = collector
    run_id, steps = started(store), some_steps()
    add(store, run_id, steps, 0, 50)
    provider = sender(RunCollector(store), address, every_s=3600)
    provider.force_flush()
    first = got.get(timeout=60)
    add(store, run_id, steps, 50, N)
    provider.shutdown()
    last = got.get(timeout=60)
    for metrics, n in ((first, 50), (last, N)):
        (point,) = metrics["vitprof_steps"].sum.data_points
        assert (point.as_double or point.as_int) == n
        labels = {each.key: each.value.string_value for each in point.attributes}
        assert (labels["run"], labels["rank"]) == (str(run_id), "0")
        (waited,) = metrics["vitprof_data_wait_seconds"].sum.data_points
        assert waited.as_double == pytest.approx(float(steps["data_wait_s"][:n].sum()))
        assert metrics["vitprof_data_wait_seconds"].unit == "s"
        assert metrics["vitprof_steps"].sum.is_monotonic
        (info,) = metrics["vitprof_run"].gauge.data_points
        assert "status" in {each.key for each in info.attributes}


def test_a_collector_that_does_not_answer_ends_nothing_and_no_thread_stays(store: RunStore) -> None:
    started(store)
    before = set(threading.enumerate())
    provider = sender(RunCollector(store), "http://127.0.0.1:9/v1/metrics", every_s=3600)
    assert set(threading.enumerate()) != before
    provider.shutdown(timeout_millis=500)
    wait_until(lambda: set(threading.enumerate()) <= before, "the SDK's threads to end")
