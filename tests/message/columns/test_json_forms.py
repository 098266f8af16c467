"""Columns of the core are those of the reader of single documents, which decides on the others."""

from __future__ import annotations

import json
import string

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gazette_aio.message import json_adapter
from gazette_aio.message.columns.documents import json_reader
from gazette_aio.message.columns.documents.decoder import Decoded, DocumentDecoder
from gazette_aio.message.core.plain.documents import Schema
from tests import extent

SCALARS = [
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float32(), pa.float64()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.binary(3)),
    *(pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns"), pa.duration("us")),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC")),
    *(pa.decimal128(6, 2), pa.decimal128(38, 38), pa.decimal256(50, 3), pa.decimal256(76, 40), pa.decimal128(4, -1)),
]  # fmt: skip
NAMES = ["a", "b", "né", "a b", 'q"\\']
names = st.sampled_from(NAMES)


def fields_of(kinds: st.SearchStrategy) -> st.SearchStrategy:
    return st.builds(
        lambda found: [pa.field(name, *each) for name, each in found.items()],
        st.dictionaries(names, st.tuples(kinds, st.booleans()), min_size=1, max_size=3),
    )


kinds = st.recursive(
    st.sampled_from(SCALARS),
    lambda inner: (
        fields_of(inner).map(pa.struct)
        | st.builds(lambda k, n: pa.list_(pa.field("item", k, n)), inner, st.booleans())
        | st.builds(pa.map_, st.sampled_from([pa.string(), pa.int8(), pa.date32()]), inner)
    ),
    max_leaves=4,
)
digits = st.text(string.digits, min_size=1, max_size=22)
numbers = st.one_of(
    st.integers(-300, 300).map(str),
    st.builds(lambda sign, bits, more: str(sign * 2**bits + more), st.sampled_from([1, -1]), st.integers(0, 70), st.integers(-1, 1)),
    st.floats().map(repr),
    st.decimals(-20_000, 20_000, places=3).map(str),
    st.from_regex(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(["-0", "0.0", "NaN", "-Infinity", "1e308", "1e309", "17976931348623159e292", "01", "1.", "-"]),
)  # fmt: skip
times = st.from_regex(
    r"(1677|1678|2261|2262|0000|9999|20[0-2][0-9])-(0[1-9]|1[0-3])-([0-2][0-9]|3[01])"
    r"([T ]([01][0-9]|2[0-4])(:[0-5][0-9](:[0-6][0-9](\.[0-9]{0,12})?)?)?(Z|[+-][012][0-9](:?[0-6][0-9])?)?)?",
    fullmatch=True,
)
texts = st.one_of(
    st.text(max_size=5),
    times,
    numbers,
    st.sampled_from(["PT1.5S", "-P1D", "12:30:05.25", "24:00", "YWJj", "YQ=", "+1", " 1", "1_0"]),
)
scalars = st.one_of(
    numbers,
    st.builds(lambda text, ascii_only: json.dumps(text, ensure_ascii=ascii_only), texts, st.booleans()),
    st.sampled_from(["true", "false", "null", '"\\ud800"', '"\\u0061"', '"\\/"', '"\x01"', "nul"]),
)  # fmt: skip
spaces = st.sampled_from(["", "", "", " ", "\t\r\n"])


@st.composite
def objects(draw: st.DrawFn, members: dict[str, st.SearchStrategy]) -> str:
    found = [(n, value) for n, value in members.items() if draw(st.integers(0, 9)) < 9]
    if draw(st.integers(0, 4)) == 4:
        found += [(draw(names), scalars)]
    pairs = [
        json.dumps(name, ensure_ascii=draw(st.booleans())) + draw(spaces) + ":" + draw(value)
        for name, value in draw(st.permutations(found))
    ]
    return draw(spaces) + "{" + ("," + draw(spaces)).join(pairs) + "}" + draw(spaces)


def values_of(kind: pa.DataType) -> st.SearchStrategy[str]:
    """Generate JSON values, most of which a type takes."""
    types = pa.types
    if types.is_struct(kind):
        good = objects({field.name: values_of(field.type) for field in kind})
    elif types.is_map(kind):
        keys = st.sampled_from(["1", "2", "3", "01", "2020-01-02"])
        pairs = st.lists(st.tuples(keys.map(json.dumps), values_of(kind.item_type)), max_size=3)
        good = pairs.map(lambda found: "{" + ",".join(map(":".join, found)) + "}")
    elif types.is_list(kind):
        items = st.lists(values_of(kind.value_type), max_size=3)
        good = items.map(lambda found: "[" + ",".join(found) + "]")
    elif types.is_integer(kind):
        bits = kind.bit_width - types.is_signed_integer(kind)
        good = st.integers(-(1 << bits) if types.is_signed_integer(kind) else 0, (1 << bits)).map(
            str
        )
    elif types.is_floating(kind):
        good = st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr)
    elif types.is_decimal(kind):
        good = st.decimals(-2, 2, places=max(kind.scale, 0)).map(lambda number: f"{number:f}")
    elif types.is_boolean(kind):
        good = st.sampled_from(["true", "false"])
    elif types.is_timestamp(kind) or types.is_date(kind):
        length = 10 if types.is_date(kind) else None
        good = st.datetimes().map(lambda time: json.dumps(str(time)[:length]))
        good |= times.map(json.dumps)
    elif types.is_string(kind) or types.is_large_string(kind):
        good = st.text(max_size=5).map(json.dumps)
    else:
        good = st.sampled_from(["PT1.5S", "-P1D", "12:30:05.25", "YWJj", "AAEC"]).map(json.dumps)
    others = scalars | st.just("null")
    return st.integers(0, 11).flatmap(lambda at: good if at < 11 else others)


@st.composite
def schemas_and_documents(draw: st.DrawFn) -> tuple[pa.Schema, list[bytes]]:
    schema = pa.schema(draw(fields_of(kinds)))
    documents = []
    for text in draw(
        st.lists(objects({f.name: values_of(f.type) for f in schema}), min_size=2, max_size=8)
    ):
        document = bytearray(text.encode("utf-8", "surrogatepass"))
        if draw(st.integers(0, 5)) == 5:
            at = draw(st.integers(0, len(document)))
            cut = draw(st.sampled_from([b"", b"{", b'"', b",", b"\\", b"]", b"\xff", b"e9", b"\0"]))
            document[at : at + draw(st.integers(0, 2))] = cut
        documents.append(bytes(document))
    return schema, documents


def decode(schema: pa.Schema, documents: list[bytes]) -> Decoded:
    decoder = DocumentDecoder(json_adapter(), schema)
    decoded = decoder.decode(pa.array(documents, pa.binary()))
    decoded.batch.validate(full=True)
    return decoded


@extent.examples(100)
@given(schemas_and_documents())
def test_documents_are_the_same_one_by_one(given_):
    schema, documents = given_
    found = decode(schema, documents)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_reader, "Schema", Schema)
        want = decode(schema, documents)
    assert [(row, str(error)) for row, error in found.bad] == [
        (row, str(error)) for row, error in want.bad
    ]
    assert found.batch.equals(want.batch)
