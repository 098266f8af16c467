"""What tests do to a broker: interfere with requests, fail stores, and move time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import gazette_aio.protocol as pb
from gazette_aio.broker.control import rules
from gazette_aio.broker.control.handles import (
    STOPPING,
    Hold,
    Observation,
    RuleHandle,
    StoreFailure,
    Waiting,
    resolve,
)
from gazette_aio.serving.rpc_error import RpcError

if TYPE_CHECKING:
    import asyncio

    from google.protobuf.message import Message

    from gazette_aio.broker.control.rules import FailWith, JournalRule, Kind, Moment, Respond
    from gazette_aio.broker.host.clock import ManualClock
    from gazette_aio.broker.runtime import Runtime

H = TypeVar("H", bound=RuleHandle)
Where = Callable[[Any], bool]


class Verdict(NamedTuple):
    """What becomes of a request."""

    responses: list[Message] | None
    """What it's answered, or None if it's served."""
    cut: rules.Cut | None
    """How its stream is broken."""


class BrokerControl:
    """Control of a broker by tests: `EmbeddedBroker.control`.

    Rules are for requests of one kind: `"list"`, `"apply"`, `"read"`, `"append"`,
    `"list_fragments"`, `"fragment_store_health"` or `"replicate"`, over gRPC and HTTP alike. They
    may be narrowed by `journal` (a name, a prefix of names which ends in `/`, or a predicate of
    names) and by `where`, a predicate of requests. Several rules may apply to one request, in the
    order in which they were made, until one answers it. Requests which aren't authorized are
    refused before any rule, and those which aren't valid are so behind them.

    Rules can be made before the broker starts, and outlive its stop. All methods belong to the
    thread of the broker's event loop.

    Args:
        clock: The clock of the broker.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        """The broker's clock, which `advance` moves. Real time passes too until it's frozen."""
        self.kinds: frozenset[Kind] = frozenset()
        """Kinds of requests which there are rules for; all that's looked at while there are none.
        """
        self._rules = rules.RuleBook()
        self._handles: dict[rules.Rule, RuleHandle] = {}
        self._failures: list[StoreFailure] = []
        self._waiting: set[asyncio.Future[None]] = set()
        self._runtime: Runtime | None = None
        self._stopping = False

    def __repr__(self) -> str:
        return f"<BrokerControl {self._rules!r} waiting={len(self._waiting)} {self.clock!r}>"

    # Requests

    def once(
        self,
        kind: Kind,
        *,
        journal: JournalRule | None = None,
        where: Where | None = None,
        respond: Respond | None = None,
        fail: FailWith | None = None,
        status: pb.Status.ValueType | None = None,
    ) -> RuleHandle:
        """Answer the next request by exactly one of `respond`, `fail` and `status`.

        An append is answered once all of it has arrived; nothing of it is committed.

        Args:
            kind: Kind of request.
            journal: Journals of the request.
            where: Predicate of requests.
            respond: A response, responses of a stream, or a function of the request which returns
                either of them, or None to let the request pass. A missing header is filled in.
            fail: Name of a gRPC code, or that and a text.
            status: Status of an otherwise empty response.

        Raises:
            ValueError: If the arguments don't go together.
            TypeError: If a response isn't of the kind's type.
        """
        action = rules.answer(kind, respond=respond, fail=fail, status=status)
        return self._add(RuleHandle, rules.Rule(kind, action, journal, where, times=1))

    def keep(
        self,
        kind: Kind,
        *,
        journal: JournalRule | None = None,
        where: Where | None = None,
        respond: Respond | None = None,
        fail: FailWith | None = None,
        status: pb.Status.ValueType | None = None,
    ) -> RuleHandle:
        """Answer all requests as `once` does the next one, until the rule is removed."""
        action = rules.answer(kind, respond=respond, fail=fail, status=status)
        return self._add(RuleHandle, rules.Rule(kind, action, journal, where))

    def observe(
        self, kind: Kind, *, journal: JournalRule | None = None, where: Where | None = None
    ) -> Observation:
        """See requests, and let them pass."""
        return self._add(Observation, rules.Rule(kind, None, journal, where))

    def hold(
        self, kind: Kind, *, journal: JournalRule | None = None, where: Where | None = None
    ) -> Hold:
        """Let requests wait until they're released or failed.

        When the broker stops, those which wait fail as `UNAVAILABLE`.
        """
        return self._add(Hold, rules.Rule(kind, None, journal, where))

    def delay(
        self,
        kind: Kind,
        *,
        seconds: float,
        journal: JournalRule | None = None,
        where: Where | None = None,
    ) -> RuleHandle:
        """Let each request wait for a number of seconds of the broker's clock."""
        return self._add(RuleHandle, rules.Rule(kind, rules.pause(seconds), journal, where))

    def cut(
        self,
        kind: Kind,
        *,
        journal: JournalRule | None = None,
        where: Where | None = None,
        after_messages: int | None = None,
        after_bytes: int | None = None,
        at: Moment | None = None,
        fail: FailWith | None = ("UNAVAILABLE", rules.FAILED_TEXT),
        times: int | None = 1,
    ) -> RuleHandle:
        """Serve requests, and break their streams in the middle.

        Exactly one of `after_messages`, `after_bytes` and `at` says where. Messages and bytes of
        content are those which the broker sends, or those which it receives of an append.

        Args:
            kind: `"read"`, `"append"`, or `"list"`.
            journal: Journals of the request.
            where: Predicate of requests.
            after_messages: Number of messages; an append has one without content at either end.
            after_bytes: Bytes of content. A read ends exactly there; an append with the message
                which reaches it, of which nothing remains.
            at: For an append: `"before_commit"`, when all of it was received, of which nothing
                remains; or `"after_commit"`, when it's committed and durable but not answered.
            fail: Name of a gRPC code, or that and a text. None ends a read or a listing without
                an error.
            times: How many requests it's for; None is for all until it's removed.

        Raises:
            ValueError: If the arguments don't go together.
        """
        action = rules.cut(
            kind, after_messages=after_messages, after_bytes=after_bytes, at=at, fail=fail
        )
        if times is not None and times < 1:
            raise ValueError(f"a rule is for one or more requests (not {times})")
        return self._add(RuleHandle, rules.Rule(kind, action, journal, where, times=times))

    # Stores and time

    def fail_store(self, url: str, error: str | OSError = rules.FAILED_TEXT) -> StoreFailure:
        """Fail all operations on a store, health checks among them, until that's removed.

        Args:
            url: URL of the store, as specs have it.
            error: Text of a StoreError, or an OSError, which operations raise.

        Raises:
            ValidationError: If the URL isn't valid.
        """
        pb.parse_fragment_store(url)
        failure = StoreFailure(self, url, error)
        self._failures.append(failure)
        self._show(url)
        return failure

    async def settled(self) -> None:
        """Wait until the work which is due by the broker's clock is done.

        That's work of the broker's own: pulses, refreshes, writes to stores. Work which waits for
        a request, such as a pulse for an append which holds the journal, is waited for as well.

        Cancellation: safe.
        """
        if self._runtime is not None:
            await self._runtime.scheduler.settled()

    def clear(self) -> None:
        """Remove all rules, and all failures of stores; requests which are held go on."""
        for handle in list(self._handles.values()):
            handle.remove()
        for failure in list(self._failures):
            failure.remove()

    # For handles

    def has(self, rule: rules.Rule) -> bool:
        """Return whether a rule may be applied to further requests."""
        return rule in self._rules

    def drop(self, rule: rules.Rule) -> None:
        """Remove a rule."""
        self._rules.remove(rule)
        self._forget(rule)

    def restore(self, failure: StoreFailure) -> None:
        """Remove a failure of a store."""
        if failure in self._failures:
            self._failures.remove(failure)
            self._show(failure.url)

    def waiting(self) -> Waiting:
        """Return a context manager of a future which fails when the broker stops.

        Raises:
            RpcError: On entry, if it's stopping already.
        """
        return Waiting(self._waiting, stopping=self._stopping)

    # For the broker

    def attach(self, runtime: Runtime) -> None:
        """Take control of a broker which is about to start."""
        self._runtime = runtime
        self._stopping = False
        for url in {failure.url for failure in self._failures}:
            self._show(url)

    def detach(self) -> None:
        """Fail requests which wait, and will, as the broker stops."""
        self._stopping = True
        self._runtime = None
        for future in list(self._waiting):
            resolve(future, rules.Failure("UNAVAILABLE", STOPPING))

    @property
    def is_stopping(self) -> bool:
        """Whether the broker is stopping, or has."""
        return self._stopping

    async def admit(self, kind: Kind, request: Message) -> Verdict:
        """Apply rules to a request; return what becomes of it.

        Raises:
            RpcError: If it's to fail.

        Cancellation: safe.
        """
        cut: rules.Cut | None = None
        serial = 0
        while (rule := self._rules.next(kind, request, serial)) is not None:
            serial = rule.serial
            handle = self._handles[rule]
            match rule.action:
                case rules.Answer(respond):
                    responses = respond(request)
                    if responses is not None:
                        self._apply(rule)
                        return Verdict(responses, cut)
                case rules.Failure(code, text):
                    self._apply(rule)
                    raise RpcError(text, code)
                case rules.Cut() as found:
                    if cut is None:
                        cut = found
                        self._apply(rule)
                case rules.Pause(seconds):
                    self._apply(rule)
                    await self._pause(seconds)
                case _ if isinstance(handle, Hold):
                    self._apply(rule)
                    await handle.wait(request)
                case _:
                    assert isinstance(handle, Observation)
                    self._apply(rule)
                    seen = type(request)()
                    seen.CopyFrom(request)
                    handle.add(seen)
        return Verdict(None, cut)

    async def _pause(self, seconds: float) -> None:
        with self.waiting() as future:
            timer = self.clock.call_at(
                self.clock.monotonic() + seconds, lambda: resolve(future, None)
            )
            try:
                await future
            finally:
                timer.cancel()

    def _add(self, make: Callable[[BrokerControl, rules.Rule], H], rule: rules.Rule) -> H:
        self._rules.add(rule)
        handle = self._handles[rule] = make(self, rule)
        self.kinds = self._rules.kinds
        return handle

    def _apply(self, rule: rules.Rule) -> None:
        self._rules.apply(rule)
        if rule not in self._rules:
            self._forget(rule)

    def _forget(self, rule: rules.Rule) -> None:
        self._handles.pop(rule, None)
        self.kinds = self._rules.kinds

    def _show(self, url: str) -> None:
        if self._runtime is not None:
            newest = next((made for made in reversed(self._failures) if made.url == url), None)
            self._runtime.stores.get(url).replace(newest.store if newest else None)
