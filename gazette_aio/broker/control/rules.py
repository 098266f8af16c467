"""Rules of tests for requests: the requests they match, and their actions.

Rules apply in the order of their creation. Several rules may apply to one request: each observes,
delays or holds the request, until one rule answers it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

from google.protobuf.message import Message

import gazette_aio.protocol as pb
from gazette_aio.protocol import service
from gazette_aio.protocol.journal import strip_meta
from gazette_aio.serving.calls import EndOfCallError
from gazette_aio.serving.rpc_error import CODES, RpcError

RequestKind = Literal[
    "list", "apply", "read", "append", "list_fragments", "fragment_store_health", "replicate"
]
"""Kind of a request."""

Moment = Literal["before_commit", "after_commit"]
"""Moment of an append at which it may be cut."""

JournalRule = str | Callable[[str], bool]
"""A journal's name, a prefix of names which ends in a slash, or a predicate of names."""

FailWith = str | tuple[str, str]
"""Name of a gRPC code, or that and a text."""

Respond = Message | Sequence[Message] | Callable[[Any], Message | Sequence[Message] | None]
"""A response, responses of a stream, or a function of the request that returns one of these, or
None to let the request pass."""

FAILED_TEXT: Final = "failed on request of a test"

KINDS: Final[dict[str, RequestKind]] = {
    service.LIST: "list",
    service.APPLY: "apply",
    service.READ: "read",
    service.APPEND: "append",
    service.REPLICATE: "replicate",
    service.LIST_FRAGMENTS: "list_fragments",
    service.FRAGMENT_STORE_HEALTH: "fragment_store_health",
}
"""Kinds of requests by the paths of their methods."""

_RESPONSES: Final[dict[RequestKind, type[Message]]] = {
    kind: service.METHODS[path].response for path, kind in KINDS.items()
}
_STREAMS: Final = frozenset({"list", "read"})
ROUTED: Final = frozenset({"read", "append", "list_fragments", "replicate"})
"""Kinds of requests for one journal."""

_UNROUTED_STATUSES: Final = frozenset(
    {pb.Status.JOURNAL_NOT_FOUND, pb.Status.NO_JOURNAL_PRIMARY_BROKER, pb.Status.SUSPENDED}
)


# What rules ask


class RuleAnswer(NamedTuple):
    """Answer the request."""

    responses: Callable[[Message], list[Message] | None]
    """Returns the responses to a request, or None to let it pass."""


class RuleFailure(NamedTuple):
    """Fail the request."""

    code: str
    text: str

    def error(self) -> RpcError:
        """Return the error of the RPC."""
        return RpcError(self.text, self.code)


class RulePause(NamedTuple):
    """Let the request wait for a while."""

    seconds: float


class RuleCut(NamedTuple):
    """Serve the request, and break its stream."""

    failure: RuleFailure | None
    """Failure of the stream; None ends it as if it were complete."""
    after_messages: int | None = None
    after_bytes: int | None = None
    at: Moment | None = None


def answer(
    kind: RequestKind,
    *,
    respond: Respond | None,
    fail: FailWith | None,
    status: pb.Status.ValueType | None,
) -> RuleAnswer | RuleFailure:
    """Return the action of a rule that answers, from exactly one of the arguments.

    Raises:
        ValueError: None or several of the arguments are given, or a code doesn't exist.
        TypeError: Responses aren't of the kind's type.
    """
    if sum(argument is not None for argument in (respond, fail, status)) != 1:
        raise ValueError("exactly one of respond, fail and status is expected")
    if fail is not None:
        return failure(fail)
    if status is not None:
        respond = _RESPONSES[kind](status=status)
    given = respond
    if not callable(given):
        _responses(kind, given)

    def responses(request: Message) -> list[Message] | None:
        return _responses(kind, given(request) if callable(given) else given)

    return RuleAnswer(responses)


def failure(fail: FailWith) -> RuleFailure:
    """Return a failure.

    Raises:
        ValueError: The code isn't one of gRPC.
    """
    code, text = (fail, FAILED_TEXT) if isinstance(fail, str) else fail
    if code not in CODES or code == "OK":
        raise ValueError(f"{code!r} isn't the name of a gRPC code")
    return RuleFailure(code, text)


def cut(
    kind: RequestKind,
    *,
    after_messages: int | None,
    after_bytes: int | None,
    at: Moment | None,
    fail: FailWith | None,
) -> RuleCut:
    """Return the cut of a stream.

    Raises:
        ValueError: The arguments don't fit requests of the kind.
    """
    if sum(argument is not None for argument in (after_messages, after_bytes, at)) != 1:
        raise ValueError("exactly one of after_messages, after_bytes and at is expected")
    if kind not in _STREAMS and kind != "append":
        raise ValueError(f"a stream of {kind} can't be cut")
    if kind == "list" and after_bytes is not None:
        raise ValueError("after_bytes needs a stream with content, which list has not")
    if at is not None and (kind != "append" or at not in get_args(Moment)):
        raise ValueError(f"{kind} can't be cut at {at!r}")
    if fail is None and kind == "append":
        raise ValueError("fail=None can't cut an append")
    if min(after_messages or 0, after_bytes or 0) < 0:
        raise ValueError("after_messages and after_bytes must not be negative")
    failed = None if fail is None else failure(fail)
    return RuleCut(failed, after_messages, after_bytes, at)


def pause(seconds: float) -> RulePause:
    """Return a pause.

    Raises:
        ValueError: The number is negative, or not finite.
    """
    if not (seconds >= 0 and math.isfinite(seconds)):
        raise ValueError(f"seconds must be finite and not negative (not {seconds})")
    return RulePause(seconds)


def _responses(kind: RequestKind, made: Message | Sequence[Message] | None) -> list[Message] | None:
    if made is None:
        return None
    responses = [made] if isinstance(made, Message) else list(made)
    expected = _RESPONSES[kind]
    for response in responses:
        if not isinstance(response, expected):
            raise TypeError(
                f"{kind} is answered by {expected.__name__} (not {type(response).__name__})"
            )
    if len(responses) != 1 and kind not in _STREAMS:
        raise ValueError(f"{kind} is answered by one response (not {len(responses)})")
    return responses


# Which requests they're for


@dataclass(eq=False, slots=True)
class RequestRule:
    """A rule for requests of one kind."""

    kind: RequestKind
    action: object
    """Action on a request; None lets the request pass."""
    journal: JournalRule | None = None
    """Journals whose requests match; None is all."""
    where: Callable[[Any], bool] | None = None
    """Predicate of requests."""
    times: int | None = None
    """Number of requests after which the rule ends; None is no end."""
    hits: int = 0
    """Number of requests to which the rule was applied."""
    serial: int = field(default=0)
    """Its place in the order of rules."""

    def matches(self, kind: RequestKind, request: Message) -> bool:
        """Return whether the rule is for a request."""
        if kind != self.kind:
            return False
        if self.journal is not None and not any(
            _is_named(self.journal, name) for name in journals_of(request)
        ):
            return False
        return self.where is None or self.where(request)


class RuleBook:
    """Rules in their order."""

    def __init__(self) -> None:
        self.kinds: frozenset[RequestKind] = frozenset()
        """Kinds of requests which there are rules for."""
        self._rules: dict[int, RequestRule] = {}
        self._serial = 0

    def __repr__(self) -> str:
        return f"<RuleBook rules={len(self._rules)}>"

    def __contains__(self, rule: RequestRule) -> bool:
        return self._rules.get(rule.serial) is rule

    def __iter__(self) -> Iterator[RequestRule]:
        """Iterate the rules as of now."""
        return iter(list(self._rules.values()))

    def add(self, rule: RequestRule) -> None:
        """Add a rule after all others.

        Raises:
            ValueError: Its kind doesn't exist.
        """
        if rule.kind not in _RESPONSES:
            kinds = ", ".join(_RESPONSES)
            raise ValueError(f"unknown kind of request: {rule.kind!r}; expected one of {kinds}")
        self._serial += 1
        rule.serial = self._serial
        self._rules[rule.serial] = rule
        self.kinds = self.kinds.union((rule.kind,))

    def remove(self, rule: RequestRule) -> None:
        """Remove a rule, if it's still there."""
        if rule in self:
            del self._rules[rule.serial]
            self.kinds = frozenset(rule.kind for rule in self)

    def next(self, kind: RequestKind, request: Message, after: int) -> RequestRule | None:
        """Return the first rule for a request after the rule with serial number `after`."""
        for rule in self:
            # A predicate may remove rules, its own among them.
            is_next = rule.serial > after and rule in self and rule.matches(kind, request)
            if is_next and rule in self:
                return rule
        return None

    def apply(self, rule: RequestRule) -> None:
        """Count a request of a rule, and remove the rule after its last request."""
        rule.hits += 1
        if rule.times is not None and rule.hits >= rule.times:
            self.remove(rule)


def journals_of(request: Message) -> list[str]:
    """Return the names of a request's journals, without their metadata suffixes."""
    if isinstance(request, pb.ApplyRequest):
        return [
            change.upsert.name if change.HasField("upsert") else change.delete
            for change in request.changes
        ]
    if isinstance(request, pb.ListRequest):
        return pb.values_of(request.selector.include, "name") or []
    if isinstance(request, pb.ReplicateRequest):
        return [strip_meta(request.proposal.journal)]
    if isinstance(request, pb.ReadRequest | pb.AppendRequest | pb.FragmentsRequest):
        return [strip_meta(request.journal)]
    return []


def _is_named(rule: JournalRule, name: str) -> bool:
    if not isinstance(rule, str):
        return rule(name)
    # Names of journals don't end in a slash, but prefixes do.
    return name.startswith(rule) if rule.endswith("/") else name == rule


# How they're carried out


class CutCounter:
    """Counts messages and bytes of a stream up to its cut, if any."""

    __slots__ = ("_bytes", "_cut", "_messages")

    def __init__(self, cut: RuleCut | None) -> None:
        self._cut = cut
        self._messages = 0
        self._bytes = 0

    def check(self) -> None:
        """Check that the cut isn't reached.

        Raises:
            RpcError: The stream fails here.
            EndOfCallError: The stream ends here, as if it were complete.
        """
        if (cut := self._cut) is None:
            return
        messages, content = cut.after_messages, cut.after_bytes
        if (messages is not None and self._messages >= messages) or (
            content is not None and self._bytes >= content
        ):
            raise EndOfCallError if cut.failure is None else cut.failure.error()

    def room(self, length: int) -> int:
        """Return how many bytes of a message of `length` bytes are before the cut."""
        if self._cut is None or self._cut.after_bytes is None:
            return length
        return min(length, self._cut.after_bytes - self._bytes)

    def count(self, length: int) -> None:
        """Count a message with `length` bytes of content."""
        self._messages += 1
        self._bytes += length

    def reach(self, moment: Moment) -> None:
        """Reach a moment of an append.

        Raises:
            RpcError: The append is cut there.
        """
        if self._cut is not None and self._cut.at == moment:
            assert self._cut.failure is not None, "a cut append fails"
            raise self._cut.failure.error()


def completed(
    kind: RequestKind, responses: Sequence[Any], routed: pb.Header, unrouted: pb.Header
) -> list[Any]:
    """Return copies of responses, with the parts that clients require.

    Args:
        kind: Kind of the request.
        responses: Responses of a rule.
        routed: Header of journals that the broker serves.
        unrouted: Header of other responses.
    """
    out: list[Any] = []
    for given in responses:
        response = deepcopy(given)
        if not response.HasField("header") and _has_header(kind, response, first=not out):
            is_routed = kind in ROUTED and response.status not in _UNROUTED_STATUSES
            response.header.CopyFrom(routed if is_routed else unrouted)
        if kind == "append" and response.status in (pb.Status.OK, pb.Status.REGISTER_MISMATCH):
            response.registers.SetInParent()
        out.append(response)
    return out


def _has_header(kind: RequestKind, response: Any, *, first: bool) -> bool:
    match kind:
        case "read":
            return first and not response.content
        case "replicate":
            return bool(response.status == pb.Status.WRONG_ROUTE)
        case _:
            return True
