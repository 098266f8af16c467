"""Metrics of clients and of embedded brokers for Prometheus, with Gazette's names.

Consumers have `gazette_aio.consumer.service.metrics.ConsumerMetrics`.

Needs the extra `metrics`: `pip install "gazette-aio[metrics]"`.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import gazette_aio.protocol as pb
from gazette_aio.broker.host.metrics import FAMILIES, families_of

try:
    from prometheus_client import REGISTRY, CollectorRegistry, Counter
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector
except ImportError as _error:
    raise ImportError(
        "gazette_aio.contrib.prometheus needs prometheus-client: pip install 'gazette-aio[metrics]'"
    ) from _error

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gazette_aio.broker import EmbeddedBroker
    from gazette_aio.broker.host.metrics import Family

MOST_JOURNALS: Final = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class _OfCodec:
    """Counters of a journal and a codec."""

    opened: Counter
    opened_bytes: Counter
    content_length: Counter
    read: Counter
    discarded: Counter


@dataclasses.dataclass(frozen=True, slots=True)
class _OfJournal:
    """Counters of a journal."""

    appended: Counter
    read: Counter
    codecs: dict[str, _OfCodec]


class PrometheusMetrics:
    """Counters of clients, for the argument `metrics` of `connect()`; clients may share them.

        gazette_append_bytes_total{journal}
        gazette_read_bytes_total{journal}
        gazette_fragment_open_total{journal,codec}
        gazette_fragment_open_bytes_total{journal,codec}
        gazette_fragment_open_content_length_total{journal,codec}
        gazette_read_fragment_bytes_total{journal,codec}
        gazette_discard_fragment_bytes_total{journal,codec}

    Each journal in use has counters. Beyond `max_journals`, the counters of the least recently used
    journal are dropped, and start at zero when the journal is used again.

    Args:
        registry: Registry of the counters, or None for the registry of the process.
        prefix: Prefix of the names.
        max_journals: Most journals with counters.

    Raises:
        ValueError: The registry has counters with these names.
        ConfigurationError: `max_journals` isn't positive.

    Example:
        connect(metrics=PrometheusMetrics())
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        *,
        prefix: str = "gazette",
        max_journals: int = MOST_JOURNALS,
    ) -> None:
        if max_journals < 1:
            raise pb.ConfigurationError("max_journals must be positive")
        registry = REGISTRY if registry is None else registry

        def counter(name: str, about: str, labels: Sequence[str] = ("journal", "codec")) -> Counter:
            # Prometheus adds `_total` to the name.
            return Counter(f"{prefix}_{name}", about, labels, registry=registry)

        self._appended = counter("append_bytes", "Bytes of committed appends.", ["journal"])
        self._read = counter("read_bytes", "Bytes read.", ["journal"])
        self._by_codec = (
            counter("fragment_open", "Fragment files opened."),
            counter("fragment_open_bytes", "Uncompressed bytes of the fragments opened."),
            counter("fragment_open_content_length", "Bytes of the fragment files opened."),
            counter("read_fragment_bytes", "Uncompressed bytes read of fragment files."),
            counter("discard_fragment_bytes", "Uncompressed bytes skipped in fragment files."),
        )
        self._max_journals = max_journals
        self._journals: OrderedDict[str, _OfJournal] = OrderedDict()

    def append_bytes(self, journal: str, count: int) -> None:
        """Count bytes of a committed append."""
        self._of(journal).appended.inc(count)

    def read_bytes(self, journal: str, count: int) -> None:
        """Count bytes that a reader returned."""
        self._of(journal).read.inc(count)

    def fragment_open(
        self, journal: str, codec: str, fragment_bytes: int, content_length: int | None
    ) -> None:
        """Count an opened fragment file."""
        counters = self._of_codec(journal, codec)
        counters.opened.inc()
        counters.opened_bytes.inc(fragment_bytes)
        if content_length is not None:
            counters.content_length.inc(content_length)

    def read_fragment_bytes(self, journal: str, codec: str, count: int) -> None:
        """Count uncompressed bytes read from a fragment file."""
        self._of_codec(journal, codec).read.inc(count)

    def discard_fragment_bytes(self, journal: str, codec: str, count: int) -> None:
        """Count uncompressed bytes skipped in a fragment file."""
        self._of_codec(journal, codec).discarded.inc(count)

    def _of(self, journal: str) -> _OfJournal:
        counters = self._journals.get(journal)
        if counters is not None:
            self._journals.move_to_end(journal)
            return counters
        if len(self._journals) >= self._max_journals:
            self._drop(*self._journals.popitem(last=False))
        counters = self._journals[journal] = _OfJournal(
            self._appended.labels(journal), self._read.labels(journal), {}
        )
        return counters

    def _of_codec(self, journal: str, codec: str) -> _OfCodec:
        codecs = self._of(journal).codecs
        if (counters := codecs.get(codec)) is None:
            counters = codecs[codec] = _OfCodec(
                *(counter.labels(journal, codec) for counter in self._by_codec)
            )
        return counters

    def _drop(self, journal: str, counters: _OfJournal) -> None:
        self._appended.remove(journal)
        self._read.remove(journal)
        for codec in counters.codecs:
            for counter in self._by_codec:
                counter.remove(journal, codec)

    def __repr__(self) -> str:
        return f"<PrometheusMetrics of {len(self._journals)} journals>"


class BrokerCollector(Collector):
    """Collector of the metrics of an embedded broker, while the broker runs.

        gazette_journal_server_started_totals{operation}
        gazette_journal_server_completed_totals{operation,status}
        gazette_spool_commits_total
        gazette_spool_commit_bytes_total
        gazette_spool_rollbacks_total
        gazette_spool_rollback_bytes_total
        gazette_spool_completed_total
        gazette_spool_persisted_total
        gazette_store_put_bytes_total
        gazette_store_list_items_count
        gazette_store_health_check_total
        gazette_failing_stores
        gazette_write_head{journal}

    The HTTP gateway of a broker, and of `gazette-aio serve`, has the same metrics at
    `/debug/metrics`. Values are read when the registry collects them.

    Args:
        broker: The broker, started or not.
        registry: Registry of the metrics, or None for the registry of the process.

    Raises:
        ValueError: The registry has metrics with these names.

    Example:
        BrokerCollector(broker)
    """

    def __init__(self, broker: EmbeddedBroker, registry: CollectorRegistry | None = None) -> None:
        self._broker = broker
        (REGISTRY if registry is None else registry).register(self)

    def describe(self) -> list[Metric]:
        """Return the metrics without values, for the registry's check of names."""
        return [_metric(each) for each in FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """Yield the present metrics; none if the broker isn't running."""
        try:
            stats = self._broker.stats()
        except pb.ConfigurationError:
            return
        for family, samples in families_of(stats):
            metric = _metric(family)
            for values, number in samples:
                labels = dict(zip(family.labels, values, strict=True))
                metric.add_sample(family.name, labels, number)
            yield metric

    def __repr__(self) -> str:
        return f"<BrokerCollector of {self._broker!r}>"


def _metric(family: Family) -> Metric:
    name, about = family.name, family.about
    if family.is_gauge:
        return Metric(name, about, "gauge")
    # Wire: expositions add `_total` to names of counters, but some of Gazette's names don't have
    # it.
    stem = name.removesuffix("_total")
    return Metric(stem, about, "unknown" if stem == name else "counter")
