"""Journal names."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.protocol.go.text import clean_path
from gazette_aio.protocol.journal import split_meta, strip_meta, validate_token
from tests.protocol.support import error_of


@pytest.mark.parametrize(
    "name",
    [
        "日本",
        "été",
        "a" * 512,
        "é" * 256,
    ],
)
def test_valid_names(name: str):
    pb.validate_journal(name)
    pb.Journal(name).validate()


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("//a/b", "must be a clean path (//a/b)"),
        ("日", "invalid length (3; expected 4 <= length <= 512)"),
        ("é" * 257, "invalid length (514; expected 4 <= length <= 512)"),
        ("name\n", "not a valid token (name\n)"),
        ("name\x00x", "not a valid token (name\x00x)"),
        ("\ud800\udc00", "not a valid token (\ud800\udc00)"),
    ],
)
def test_invalid_names(name: str, error: str):
    for _ in range(2):
        # An error isn't remembered as a success, or the other way round.
        assert error_of(pb.validate_journal, name) == error


def test_names_which_climb_can_be_refused():
    pb.validate_journal("../a/b", allow_parent=True)
    pb.validate_journal("a/bc", allow_parent=False)
    pb.validate_journal("..a/b", allow_parent=False)
    with pytest.raises(pb.ValidationError, match=r"^cannot begin with '../' \(../a/b\)$"):
        pb.validate_journal("../a/b", allow_parent=False)
    with pytest.raises(pb.ValidationError, match=r"^cannot begin with '../'"):
        pb.Journal("../a/b").validate(allow_parent=False)


def test_metadata():
    journal = pb.Journal("foo/bar;meta-part;more")
    assert journal.split_meta() == ("foo/bar", ";meta-part;more")
    assert journal.strip_meta() == "foo/bar"
    assert isinstance(journal.strip_meta(), pb.Journal)
    assert split_meta("foo/bar") == ("foo/bar", "")
    assert pickle.loads(pickle.dumps(journal)) == journal


@given(st.text(max_size=40))
def test_any_text_is_valid_or_a_validation_error(name):
    if error_of(pb.validate_journal, name) is None:
        proper = strip_meta(name)
        assert clean_path(proper) == proper
        assert not proper.startswith("/")
        # What is valid survives the wire.
        assert (
            pb.ReadRequest.FromString(pb.ReadRequest(journal=name).SerializeToString()).journal
            == name
        )


@given(st.text("/.ab", max_size=12))
def test_clean_paths_are_clean(path):
    cleaned = clean_path(path)
    assert clean_path(cleaned) == cleaned
    assert "//" not in cleaned
    assert "/./" not in f"/{cleaned}/" or cleaned == "."
    assert cleaned.startswith("/") == path.startswith("/")


@given(st.text("abé-_+/.=%#; \n|", max_size=30), st.text("-_+/.=%#|", max_size=4))
def test_tokens_of_other_symbols(value, symbols):
    error = error_of(validate_token, value, min_length=0, max_length=1000, symbols=symbols)
    valid = all(char.isalnum() or char in symbols for char in value)
    assert error == (None if valid else f"not a valid token ({value})")
