"""The exception tree."""

from __future__ import annotations

import inspect
import pickle

import pytest

import gazette_aio.protocol as pb
from gazette_aio.protocol import errors, status_errors
from gazette_aio.protocol.status_errors import shard_status_error, status_error
from gazette_aio.protocol.url import parse_url

HEADER = pb.Header(process_id=pb.ProcessSpec.ID(zone="zone", suffix="suffix"))

EXAMPLES: list[pb.GazetteError] = [
    pb.ValidationError("text", ("Outer", "Inner")),
    *(
        status_error(
            status,
            "detail",
            journal="a/journal",
            header=HEADER,
            response=pb.ReadResponse(status=status, offset=5),
            attempt=2,
        )
        for status in (*pb.Status.values()[1:], pb.Status.ValueType(99))
    ),
    *(
        shard_status_error(
            status,
            "detail",
            shard="a-shard",
            header=HEADER,
            response=pb.consumer.StatResponse(status=status),
            attempt=2,
            endpoint="http://host",
        )
        for status in (*pb.consumer.Status.values()[1:], pb.consumer.Status.ValueType(99))
    ),
    pb.TransportError("UNAVAILABLE", "gone", journal="a/journal", retryable=True, attempt=3),
    pb.TransportError("", "no such file", http_status=404, journal="a/journal"),
    pb.OperationTimeoutError(
        "text", operation="append", journal="a/j", endpoint="http://h", outcome_unknown=True
    ),
    pb.ReadError("text", journal="a/journal", offset=5),
    pb.OffsetJumpError(journal="a/journal", offset=10, requested=5),
    pb.OffsetBeyondHeadError("text", journal="a/journal", offset=10, write_head=5),
    pb.SeekRequiresNewReaderError("text", offset=5),
    pb.FragmentError("text", journal="a/journal", offset=5),
    pb.UnexpectedEOFError("text", offset=5),
    pb.DidNotReadExpectedEOFError("text", offset=5),
    pb.DataLossError("text", missing=((1, 2), (5, 9))),
    pb.FramingError("text", journal="a/journal", begin=1, end=2, kind="desync"),
    pb.DesyncDetectedError("text", begin=1, end=2),
    pb.FrameTooLargeError("text", begin=1, end=2),
    pb.UnrecognizedContentTypeError("text"),
    pb.MappingError("text"),
    pb.EmptyListResponseError("text"),
    pb.SequencingError("text"),
    pb.SequencerStateError("text"),
    pb.ReplayError("text"),
    pb.MixedTransactionError("text"),
    pb.DependencyError("text"),
    pb.TransactionError("text"),
    pb.NotAwaitedError("text"),
    pb.TooManyTransactionsError("text"),
    pb.QueueFullError("text"),
    pb.RecoveryError("text"),
    pb.FencedError("text"),
    pb.StoreError("text"),
    pb.LockedError("text"),
    pb.AuthorizationError("text"),
    pb.ConfigurationError("text"),
    pb.ListenError("text"),
    pb.UsageError("text"),
]


def classes() -> list[type[pb.GazetteError]]:
    found = [
        value
        for module in (errors, status_errors)
        for _, value in inspect.getmembers(module, inspect.isclass)
        if issubclass(value, pb.GazetteError) and value.__module__ == module.__name__
    ]
    assert found
    assert len(found) == len(set(found))
    return found


def explanation(error: pb.StatusError) -> str:
    return f": {error.explanation}" if error.explanation else ""


def test_every_status_has_its_class():
    for status in pb.Status.values():
        if status == pb.Status.OK:
            continue
        error = status_error(status, journal="a/journal")
        assert type(error) is not pb.UnknownStatusError
        words = pb.Status.Name(status).split("_")
        assert type(error).__name__ == "".join(map(str.capitalize, words)) + "Error"
        assert type(error).status == error.status == status
        name, explained = pb.Status.Name(status), explanation(error)
        assert str(error) == f"{name} (journal a/journal){explained}"
        assert str(status_error(status, "text")) == f"text: {name}{explained}"


@pytest.mark.parametrize(
    "response", [pb.AppendResponse, pb.ListResponse, pb.ApplyResponse, pb.FragmentsResponse]
)
def test_a_status_of_reads_that_answers_another_request(response: type):
    status = pb.Status.OFFSET_NOT_YET_AVAILABLE
    error = status_error(status, response=response(status=status))
    assert isinstance(error, pb.OffsetNotYetAvailableError)
    assert (error.is_below_head, error.is_beyond_head) == (False, False)


def test_an_unknown_status_keeps_its_number():
    error = status_error(99)
    assert type(error) is pb.UnknownStatusError
    assert error.status == 99
    assert str(error) == "unknown status 99"


def test_every_status_of_a_shard_has_its_class():
    statuses = pb.consumer.Status
    for status in statuses.values()[1:]:
        error = shard_status_error(status, shard="a-shard", endpoint="http://host")
        assert type(error) is not pb.UnknownShardStatusError
        assert type(error).status == error.status == status
        name = statuses.Name(status)
        explained = explanation(error)
        assert str(error) == f"{name} (shard a-shard at http://host){explained}"
        assert str(shard_status_error(status, "text")) == f"text: {name}{explained}"
        assert error.text_without_endpoint == f"{name} (shard a-shard)"
        # The numbers of brokers mean something else.
        assert not isinstance(error, pb.BrokerStatusError)
    stopped = shard_status_error(statuses.SHARD_STOPPED)
    assert type(stopped) is pb.ShardStoppedError
    unknown = shard_status_error(99)
    assert type(unknown) is pb.UnknownShardStatusError
    assert str(unknown) == "unknown status 99"


def test_no_two_classes_share_a_status():
    with pytest.raises(AssertionError, match="two classes for status 1"):
        type("Another", (pb.BrokerStatusError,), {}, status=pb.Status.JOURNAL_NOT_FOUND)


def test_there_is_an_example_of_each_class():
    abstract = {pb.GazetteError, pb.StatusError, pb.BrokerStatusError, pb.ShardStatusError}
    assert {type(example) for example in EXAMPLES} == set(classes()) - abstract


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_errors_pickle_with_their_attributes(error: pb.GazetteError):
    restored = pickle.loads(pickle.dumps(error))
    assert type(restored) is type(error)
    assert str(restored) == str(error)
    assert restored.args == error.args
    assert vars(restored) == vars(error)
    assert restored.retryable == error.retryable


def test_all_are_exported_and_end_in_error():
    for cls in classes():
        assert getattr(pb, cls.__name__) is cls
        assert cls.__name__.endswith("Error")
        assert cls.__doc__


def test_kinds_of_the_standard_library():
    assert issubclass(pb.ValidationError, ValueError)
    assert issubclass(pb.UnexpectedEOFError, EOFError)
    assert issubclass(pb.OperationTimeoutError, TimeoutError)


def test_validation_errors_extend_their_context():
    error = pb.ValidationError("text", ("Inner",)).extend("Outer")
    assert error.context == ("Outer", "Inner")
    assert str(error) == "Outer.Inner: text"
    assert str(pb.ValidationError("text")) == "text"


SIGNED = "https://user:secret@store.example/f?X-Signature=secret"


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda error: type(error).__name__)
def test_no_text_shows_what_an_error_carries(example: pb.GazetteError):
    carried = {
        "response": pb.ReadResponse(fragment_url=SIGNED),
        "last_error": ValueError(SIGNED),
    }
    error: pb.GazetteError = pickle.loads(pickle.dumps(example))
    for name in vars(error).keys() & carried:
        setattr(error, name, carried[name])
    for each in (error, pickle.loads(pickle.dumps(error))):
        assert "secret" not in f"{each} {each!r} {each.args}"
        assert str(each) == str(example)


def test_parts_of_urls_show_no_secrets():
    store = pb.parse_fragment_store("s3://bucket/path/?find=secret")
    assert repr(store) == "FragmentStoreURL(scheme='s3', host='bucket', path='/path/', query=…)"
    assert store.query == "find=secret"
    url = parse_url(SIGNED)
    assert "secret" not in repr(url)
    assert url.query == "X-Signature=secret"
    with pytest.raises(pb.ValidationError) as raised:
        parse_url(SIGNED + "\n")
    assert "secret" not in f"{raised.value} {raised.value!r}"
