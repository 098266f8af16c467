"""A provider of spans that keeps them, in place of an SDK."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.util import types


@dataclasses.dataclass(eq=False)
class Span(trace.Span):
    """A span of a test."""

    name: str
    parent: trace.Span | None
    attributes: dict[str, Any]
    start: int | None = None
    end_time: int | None = None
    ended: int = 0
    status: tuple[trace.StatusCode, str | None] = (trace.StatusCode.UNSET, None)

    def end(self, end_time: int | None = None) -> None:
        self.ended += 1
        self.end_time = end_time

    def get_span_context(self) -> trace.SpanContext:
        return trace.SpanContext(1, id(self), is_remote=False)

    def set_attribute(self, key: str, value: types.AttributeValue) -> None:
        self.attributes[key] = value

    def set_attributes(self, attributes: Any) -> None:
        self.attributes |= attributes

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        raise AssertionError("unexpected event")

    def record_exception(self, exception: BaseException, *args: Any, **kwargs: Any) -> None:
        raise AssertionError("the chain of causes may show secrets")

    def update_name(self, name: str) -> None:
        self.name = name

    def is_recording(self) -> bool:
        return not self.ended

    def set_status(self, status: Any, description: str | None = None) -> None:
        self.status = (status, description)


class Spans(trace.TracerProvider, trace.Tracer):
    """Provider, and its only tracer."""

    def __init__(self) -> None:
        self.all: list[Span] = []

    def get_tracer(self, *args: Any, **kwargs: Any) -> trace.Tracer:
        return self

    def start_span(
        self,
        name: str,
        context: contexts.Context | None = None,
        kind: trace.SpanKind = trace.SpanKind.INTERNAL,
        attributes: types.Attributes = None,
        links: Sequence[trace.Link] | None = None,
        start_time: int | None = None,
        record_exception: bool = True,
        set_status_on_exception: bool = True,
    ) -> Span:
        current = trace.get_current_span(context)
        parent = current if current is not trace.INVALID_SPAN else None
        span = Span(name, parent, dict(attributes or {}), start_time)
        self.all.append(span)
        return span

    @contextlib.contextmanager
    def start_as_current_span(self, *args: Any, **kwargs: Any) -> Iterator[Span]:
        raise AssertionError("unused")
        yield

    def named(self, operation: str) -> list[Span]:
        return [span for span in self.all if span.name == f"gazette {operation}"]
