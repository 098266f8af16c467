"""Control of a broker by tests: interferes with requests, fails stores, and moves time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import gazette_aio.protocol as pb
from gazette_aio.broker.control import rules
from gazette_aio.broker.control.handles import (
    Hold,
    Observation,
    RuleHandle,
    StoreFailure,
    Waits,
)
from gazette_aio.broker.host.workers import resolve

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from gazette_aio.broker.control.rules import FailWith, JournalRule, Moment, RequestKind, Respond
    from gazette_aio.broker.host.clock import ManualClock
    from gazette_aio.broker.host.scheduler import Scheduler
    from gazette_aio.broker.stores import StoreRegistry

Where = Callable[[Any], bool]


class Verdict(NamedTuple):
    """Decision on a request."""

    responses: list[Message] | None
    """Responses to answer with, or None to serve the request."""
    cut: rules.RuleCut | None
    """Cut of its stream."""


class BrokerControl:
    """Control of a broker by tests: `EmbeddedBroker.control`.

    Rules are for requests of one kind: `"list"`, `"apply"`, `"read"`, `"append"`,
    `"list_fragments"`, `"fragment_store_health"` or `"replicate"`, over gRPC and HTTP alike. They
    may be narrowed by `journal` (a name, a prefix of names that ends in `/`, or a predicate of
    names) and by `where`, a predicate of requests. Several rules may apply to one request, in the
    order of their creation, until one answers it. Authorization comes before all rules,
    validation after them.

    Rules can be made before the broker starts, and outlive its stop. All methods belong to the
    thread of the broker's event loop.

    Args:
        clock: The clock of the broker.
    """

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        """The broker's clock, which `advance` moves. Real time passes too until it's frozen."""
        self._rules = rules.RuleBook()
        self._waits = Waits()
        self._failures: list[StoreFailure] = []
        self._scheduler: Scheduler | None = None
        self._stores: StoreRegistry | None = None

    def __repr__(self) -> str:
        return f"<BrokerControl {self._rules!r} waiting={len(self._waits)} {self.clock!r}>"

    @property
    def kinds(self) -> frozenset[RequestKind]:
        """Kinds of requests with rules."""
        return self._rules.kinds

    # Requests

    def once(
        self,
        kind: RequestKind,
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
            respond: A response, responses of a stream, or a function of the request that returns
                one of these, or None to let the request pass. A missing header is filled in.
            fail: Name of a gRPC code, or that and a text.
            status: Status of an otherwise empty response.

        Raises:
            ValueError: The arguments don't go together.
            TypeError: A response isn't of the kind's type.
        """
        action = rules.answer(kind, respond=respond, fail=fail, status=status)
        return RuleHandle(self._rules, rules.RequestRule(kind, action, journal, where, times=1))

    def keep(
        self,
        kind: RequestKind,
        *,
        journal: JournalRule | None = None,
        where: Where | None = None,
        respond: Respond | None = None,
        fail: FailWith | None = None,
        status: pb.Status.ValueType | None = None,
    ) -> RuleHandle:
        """Answer all requests as `once()` answers the next one, until the rule is removed."""
        action = rules.answer(kind, respond=respond, fail=fail, status=status)
        return RuleHandle(self._rules, rules.RequestRule(kind, action, journal, where))

    def observe(
        self, kind: RequestKind, *, journal: JournalRule | None = None, where: Where | None = None
    ) -> Observation:
        """Observe requests, and let them pass."""
        return Observation(self._rules, rules.RequestRule(kind, None, journal, where))

    def hold(
        self, kind: RequestKind, *, journal: JournalRule | None = None, where: Where | None = None
    ) -> Hold:
        """Hold requests until the test releases or fails them.

        When the broker stops, waiting requests fail as `UNAVAILABLE`.
        """
        return Hold(self._rules, rules.RequestRule(kind, None, journal, where), self._waits)

    def delay(
        self,
        kind: RequestKind,
        *,
        seconds: float,
        journal: JournalRule | None = None,
        where: Where | None = None,
    ) -> RuleHandle:
        """Let each request wait for a number of seconds of the broker's clock."""
        return RuleHandle(
            self._rules, rules.RequestRule(kind, rules.pause(seconds), journal, where)
        )

    def cut(
        self,
        kind: RequestKind,
        *,
        journal: JournalRule | None = None,
        where: Where | None = None,
        after_messages: int | None = None,
        after_bytes: int | None = None,
        at: Moment | None = None,
        fail: FailWith | None = ("UNAVAILABLE", rules.FAILED_TEXT),
        times: int | None = 1,
    ) -> RuleHandle:
        """Serve requests, and end their streams in the middle.

        Exactly one of `after_messages`, `after_bytes` and `at` sets the place. The broker counts
        messages and bytes of content that it sends, or that it receives of an append.

        Args:
            kind: `"read"`, `"append"`, or `"list"`.
            journal: Journals of the request.
            where: Predicate of requests.
            after_messages: Number of messages; an append has one without content at either end.
            after_bytes: Bytes of content. A read ends exactly there. An append ends with the
                message that reaches this number, and is rolled back.
            at: For an append: `"before_commit"`, when all content is received, and is rolled back;
                or `"after_commit"`, when the append is durable but not answered.
            fail: Name of a gRPC code, or that and a text. None ends a read or a listing without
                an error.
            times: Number of requests to cut; None cuts all until the rule is removed.

        Raises:
            ValueError: The arguments don't go together.
        """
        action = rules.cut(
            kind, after_messages=after_messages, after_bytes=after_bytes, at=at, fail=fail
        )
        if times is not None and times < 1:
            raise ValueError(f"times must be at least 1 (not {times})")
        return RuleHandle(self._rules, rules.RequestRule(kind, action, journal, where, times=times))

    # Stores and time

    def fail_store(self, url: str, error: str | OSError = rules.FAILED_TEXT) -> StoreFailure:
        """Fail all operations on a store, including health checks, until the failure is removed.

        Args:
            url: URL of the store, as specs have it.
            error: Error that operations raise: an OSError, or the text of a StoreError.

        Raises:
            ValidationError: The URL isn't valid.
        """
        pb.parse_fragment_store(url)
        failure = StoreFailure(url, error, self._restore)
        self._failures.append(failure)
        self._show(url)
        return failure

    async def settled(self) -> None:
        """Wait until all background work that is due by the broker's clock is done.

        Such work is pulses, refreshes and writes to stores. The wait includes work that itself
        waits for a request, such as a pulse that waits for an append to release the journal.

        Cancellation: safe.
        """
        if self._scheduler is not None:
            await self._scheduler.settled()

    def clear(self) -> None:
        """Remove all rules and failures of stores, and release held requests."""
        for rule in self._rules:
            if isinstance(rule.action, RuleHandle):
                rule.action.remove()
            self._rules.remove(rule)
        for failure in list(self._failures):
            failure.remove()

    # For the broker

    def attach(self, scheduler: Scheduler, stores: StoreRegistry) -> None:
        """Take control of a broker before it starts."""
        self._scheduler = scheduler
        self._stores = stores
        self._waits.begin()
        for url in {failure.url for failure in self._failures}:
            self._show(url)

    def detach(self) -> None:
        """Fail waiting requests, now and later, as the broker stops."""
        self._scheduler = self._stores = None
        self._waits.end()

    @property
    def is_stopping(self) -> bool:
        """Whether the broker is stopping, or has stopped."""
        return self._waits.stopping

    async def admit(self, kind: RequestKind, request: Message) -> Verdict:
        """Apply the rules to a request, and return the decision.

        Raises:
            RpcError: A rule fails the request.

        Cancellation: safe.
        """
        cut: rules.RuleCut | None = None
        serial = 0
        while (rule := self._rules.next(kind, request, serial)) is not None:
            serial = rule.serial
            match rule.action:
                case rules.RuleAnswer(respond):
                    responses = respond(request)
                    if responses is not None:
                        self._rules.apply(rule)
                        return Verdict(responses, cut)
                case rules.RuleFailure() as failure:
                    self._rules.apply(rule)
                    raise failure.error()
                case rules.RuleCut() as found:
                    if cut is None:
                        cut = found
                        self._rules.apply(rule)
                case rules.RulePause(seconds):
                    self._rules.apply(rule)
                    await self._pause(seconds)
                case Hold() as hold:
                    self._rules.apply(rule)
                    await hold.wait(request)
                case action:
                    assert isinstance(action, Observation)
                    self._rules.apply(rule)
                    action.add(request)
        return Verdict(None, cut)

    async def _pause(self, seconds: float) -> None:
        with self._waits.future() as future:
            timer = self.clock.call_at(
                self.clock.monotonic() + seconds, lambda: resolve(future, None, None)
            )
            try:
                await future
            finally:
                timer.cancel()

    def _restore(self, failure: StoreFailure) -> None:
        if failure in self._failures:
            self._failures.remove(failure)
            self._show(failure.url)

    def _show(self, url: str) -> None:
        if self._stores is not None:
            newest = next((made for made in reversed(self._failures) if made.url == url), None)
            self._stores.get(url).replace(newest.store if newest else None)
