"""Spans of appends, reads and transactions for OpenTelemetry.

Needs the extra `otel`: `pip install "gazette-aio[otel]"`, which is the API of OpenTelemetry alone.
Spans are exported by the SDK that your program sets up.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from gazette_aio import __version__

try:
    from opentelemetry import context, trace
except ImportError as _error:
    raise ImportError(
        "gazette_aio.contrib.otel needs opentelemetry-api: pip install 'gazette-aio[otel]'"
    ) from _error

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextvars import Token

_KINDS = {
    "append": trace.SpanKind.PRODUCER,
    "read": trace.SpanKind.CONSUMER,
    "transaction": trace.SpanKind.INTERNAL,
    "consume": trace.SpanKind.CONSUMER,
}


class OpenTelemetryTracing:
    """Spans of a client, for the argument `tracing` of `connect()`; clients may share it.

    | span | from | to | attributes |
    | --- | --- | --- | --- |
    | `gazette append` | the call, or the first append of a batch of `client.appends` | the response | `gazette.begin`, `gazette.end`, `gazette.appends` of a batch |
    | `gazette read` | the RPC | the end of the RPC and of its fragment file | `gazette.begin`, `gazette.end` |
    | `gazette transaction` | the begin of a `Publisher.transaction()` | its last acknowledgement | `gazette.journals` |
    | `gazette consume` | the first message of a shard's transaction | its last acknowledgement | `gazette.shard`, `gazette.messages`, `gazette.bytes`, milliseconds of its phases |

    The attribute `messaging.destination.name` is the journal, if a span has one. The span of a
    transaction is current within its block. The span of a batch is a child of the span that was
    current for the first of its appends. An error is the status of its span, without the chain of
    its causes. A read that ends at the write head hasn't failed.

    Args:
        provider: Provider of the tracer; None for the provider of the process.

    Example:
        connect(tracing=OpenTelemetryTracing())
    """  # noqa: E501 - Rows of a table.

    def __init__(self, provider: trace.TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("gazette_aio", __version__, provider)

    def start(self, operation: str, journal: str = "", *, current: bool = False) -> _Span:
        """Start the span of an operation, as a child of the current span."""
        attributes = {"messaging.destination.name": journal} if journal else {}
        span = self._begin(operation, attributes)
        if not current:
            return _Span(span, None)
        return _Span(span, context.attach(trace.set_span_in_context(span)))

    def record(self, operation: str, seconds: float, attributes: Mapping[str, str | int]) -> None:
        """Record a span that ends now."""
        end = time.time_ns()
        self._begin(operation, attributes, end - int(seconds * 1e9)).end(end)

    def _begin(
        self, operation: str, attributes: Mapping[str, str | int], start: int | None = None
    ) -> trace.Span:
        return self._tracer.start_span(
            f"gazette {operation}",
            kind=_KINDS[operation],
            attributes={"messaging.system": "gazette", **attributes},
            start_time=start,
            record_exception=False,
            set_status_on_exception=False,
        )

    def __repr__(self) -> str:
        return f"<OpenTelemetryTracing by {type(self._tracer).__name__}>"


class _Span:
    """A span in progress.

    Args:
        span: The span.
        token: Token to detach the span from the context, or None.
    """

    __slots__ = ("_span", "_token")

    def __init__(self, span: trace.Span, token: Token[context.Context] | None) -> None:
        self._span = span
        self._token = token

    def set(self, name: str, value: str | float) -> None:
        """Set an attribute."""
        self._span.set_attribute(name, value)

    def end(self, error: BaseException | None = None) -> None:
        """End the span. A cancellation isn't an error."""
        if error is not None:
            self._span.set_attribute("error.type", type(error).__name__)
            if isinstance(error, Exception):
                # Not recorded as an exception: texts of its causes may have signed URLs.
                self._span.set_status(trace.StatusCode.ERROR, str(error))
        self._span.end()
        if self._token is not None:
            context.detach(self._token)
