"""The counters of `export.metrics`, sent by OTLP over HTTP to a collector of OpenTelemetry, with
its SDK.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from vitprof import __version__
from vitprof.errors import VitprofError
from vitprof.export.metrics import RunCollector
from vitprof.program import install_command

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider

SEND_LIMIT_S = 10.0
"""How long (s) a collector may take to answer."""


def sender(collector: RunCollector, endpoint: str, every_s: float) -> MeterProvider:
    """Returns a provider that sends all counters to `endpoint` every `every_s` seconds, and once
    more at its shutdown.

    An endpoint without an answer is tried again. Raises `VitprofError` where the SDK is not
    installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.metrics import Observation
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
    except ModuleNotFoundError as error:
        why = "OTLP needs OpenTelemetry's SDK, which is not installed"
        raise VitprofError(f"{why}: {install_command('otlp')}") from error

    latest = {family.name: family for family in collector.collect()}
    names = list(latest)

    def seen(name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            # The SDK asks for all of them in this order: the store is read once.
            if name == names[0]:
                latest.update({family.name: family for family in collector.collect()})
            return [
                Observation(sample.value, dict(sample.labels)) for sample in latest[name].samples
            ]

        return observe

    exporter = OTLPMetricExporter(endpoint=endpoint, timeout=SEND_LIMIT_S)
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=every_s * 1e3)
    about = Resource.create({"service.name": "vitprof", "service.version": __version__})
    provider = MeterProvider([reader], about, shutdown_on_exit=False)
    meter = provider.get_meter("vitprof", __version__)
    for name, family in latest.items():
        unit: dict[str, Any] = {"unit": "s"} if name.endswith("_seconds") else {}
        make: Callable[..., object] = meter.create_observable_gauge
        if family.type == "counter":
            make = meter.create_observable_counter
        make(name, callbacks=[seen(name)], description=family.documentation, **unit)
    return provider
