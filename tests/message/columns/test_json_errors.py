"""Errors of JSON documents: what each type refuses, in the words that users see."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gazette_aio.message import json_adapter
from gazette_aio.message.columns.documents.decoder import DocumentDecoder
from gazette_aio.protocol.errors import ConfigurationError

REFUSED: dict[pa.DataType, dict[str, str]] = {
    pa.int8(): {
        "NaN": "column 'v': NaN isn't of type int8",
        "1.5": "Expected `int | null`, got `float` - at `$.v`",
        "1e400": "Number out of range - at `$.v`",
        '"x"': "Expected `int | null`, got `str` - at `$.v`",
        "true": "Expected `int | null`, got `bool` - at `$.v`",
        "[]": "Expected `int | null`, got `array` - at `$.v`",
        "128": "column 'v': 128 is out of the range of int8",
        "1e2": "Expected `int | null`, got `float` - at `$.v`",
        "00": "JSON is malformed: invalid number (byte 6)",
        "-": "JSON is malformed: invalid character (byte 6)",
        "999999999999999999999999999999": "column 'v': 999999999999999999999999999999 is out of the range of int8",
        "-Infinity": "column 'v': -Infinity isn't of type int8",
    },
    pa.int64(): {
        "9223372036854775808": "column 'v': 9223372036854775808 is out of the range of int64",
    },
    pa.uint64(): {
        "-1": "column 'v': -1 is out of the range of uint64",
        "18446744073709551616": "column 'v': 18446744073709551616 is out of the range of uint64",
    },
    pa.bool_(): {
        "NaN": "column 'v': NaN isn't of type bool",
        "1": "Expected `bool | null`, got `int` - at `$.v`",
        "tru": "JSON is malformed: invalid character (byte 9)",
    },
    pa.string(): {
        "NaN": "column 'v': NaN isn't of type string",
        "1": "Expected `str | null`, got `int` - at `$.v`",
        "{}": "Expected `str | null`, got `object` - at `$.v`",
        '"\\ud800"': "Input data was truncated",
        '"\\udc00"': "JSON is malformed: invalid utf-16 surrogate pair (byte 12)",
        '"\x01"': "JSON is malformed: invalid character (byte 6)",
        '"\\x"': "JSON is malformed: invalid escape character in string (byte 8)",
        '"a\\': "JSON is malformed: invalid escape character in string (byte 9)",
    },
    pa.float32(): {
        "1e400": "Number out of range - at `$.v`",
        '"x"': "Expected `float | null`, got `str` - at `$.v`",
        "NaN": "column 'v': number is not finite",
        "1e39": "column 'v': number is not finite",
        "-Inf": "column 'v': number is not finite",
        "1" * 400: "Number out of range - at `$.v`",
        "1.7976931348623159e308": "Number out of range - at `$.v`",
    },
    pa.decimal128(6, 2): {
        "NaN": "column 'v': NaN isn't of type decimal128(6, 2)",
        '"NaN"': "column 'v': not a decimal number: 'NaN'",
        '"x"': "Invalid decimal string - at `$.v`",
        "true": "Expected `decimal | null`, got `bool` - at `$.v`",
        "1e400": "column 'v': 1e400 has more digits than decimal128(6, 2)",
        "1.234": "column 'v': 1.234 has more digits than decimal128(6, 2)",
        "10000": "column 'v': 10000 has more digits than decimal128(6, 2)",
        "9999.999": "column 'v': 9999.999 has more digits than decimal128(6, 2)",
        '" 1"': "column 'v': not a decimal number: ' 1'",
        '"1_0"': "column 'v': not a decimal number: '1_0'",
        "1" * 50: f"column 'v': {'1' * 50} has more digits than decimal128(6, 2)",
    },
    pa.decimal128(38, 10): {
        "6"
        * 29: "column 'v': 66666666666666666666666666666 has more digits than decimal128(38, 10)",
    },
    pa.list_(pa.decimal128(38, 10)): {
        f"[{'6' * 29}]": "column 'v': 66666666666666666666666666666 has more digits than decimal128(38, 10) - at `$.v[...]`",
    },
    pa.timestamp("us"): {
        "1": "Expected `str | null`, got `int` - at `$.v`",
        '"x"': "column 'v': not of type timestamp[us]: 'x'",
        '"2020-02-30"': "column 'v': Failed to parse string: '2020-02-30' as a scalar of type timestamp[us]",
        '"2020-01-02T24:00"': "column 'v': not of type timestamp[us]: '2020-01-02T24:00'",
        '"2020-01-02T03:04:05."': "column 'v': not of type timestamp[us]: '2020-01-02T03:04:05.'",
        '"2020-01-02Z"': "column 'v': not of type timestamp[us]: '2020-01-02Z'",
    },
    pa.timestamp("ns"): {
        '"1677-12-31"': "column 'v': not of type timestamp[ns]: '1677-12-31'",
        '"2262-01-01"': "column 'v': not of type timestamp[ns]: '2262-01-01'",
    },
    pa.timestamp("s", "UTC"): {
        '"2020-01-02T03:04:05+24:00"': "column 'v': Failed to parse string: '2020-01-02T03:04:05+24:00' as a scalar of type timestamp[s, tz=UTC]: expected a zone offset. If these timestamps are in local time, cast to timestamp without timezone, then ca",
    },
    pa.date32(): {
        '"2020-01-02T03"': "column 'v': not of type date32[day]: '2020-01-02T03'",
        '"2019-02-29"': "column 'v': Failed to parse string: '2019-02-29' as a scalar of type date32[day]",
        '"2020-13-01"': "column 'v': not of type date32[day]: '2020-13-01'",
    },
    pa.binary(): {
        '"?"': "column 'v': Only base64 data is allowed",
        '"YQ"': "column 'v': Incorrect padding",
    },
    pa.time64("us"): {
        '"24:00"': "column 'v': not a time of a day: '24:00'",
    },
    pa.duration("s"): {
        '"P"': "column 'v': not an ISO 8601 duration of days to seconds: 'P'",
    },
    pa.struct([("x", pa.int8()), ("l", pa.list_(pa.decimal128(4, 1)))]): {
        "NaN": "column 'v': NaN isn't of type struct<x: int8, l: list<item: decimal128(4, 1)>>",
        "1": "Expected `object | null`, got `int` - at `$.v`",
        "[]": "Expected `object | null`, got `array` - at `$.v`",
        '{"x":1.5}': "Expected `int | null`, got `float` - at `$.v.x`",
        '{"x":300}': "column 'v': 300 is out of the range of int8 - at `$.v.x`",
        '{"x":NaN}': "column 'v': NaN isn't of type int8 - at `$.v.x`",
        '{"x":1,"x":2}': "column 'v': there are several values - at `$.v.x`",
        '{"x":1,"\\u0078":2}': "column 'v': there are several values - at `$.v.x`",
        '{"l":1}': "Expected `array | null`, got `int` - at `$.v.l`",
        '{"l":[true]}': "Expected `decimal | null`, got `bool` - at `$.v.l[0]`",
        '{"l":[12.45]}': "column 'v': 12.45 has more digits than decimal128(4, 1) - at `$.v.l[...]`",
        '{"l":[123.45]}': "column 'v': 123.45 has more digits than decimal128(4, 1) - at `$.v.l[...]`",
        '{"l":[1234]}': "column 'v': 1234 has more digits than decimal128(4, 1) - at `$.v.l[...]`",
        '{"l":["x"]}': "Invalid decimal string - at `$.v.l[0]`",
        '{"l":[null,1e40]}': "column 'v': 1e40 has more digits than decimal128(4, 1) - at `$.v.l[...]`",
        '{"l":[NaN]}': "column 'v': NaN isn't of type decimal128(4, 1) - at `$.v.l[...]`",
    },
    pa.list_(pa.list_(pa.int16())): {
        "{}": "Expected `array | null`, got `object` - at `$.v`",
        "[1]": "Expected `array | null`, got `int` - at `$.v[0]`",
        '[[1,"a"]]': "Expected `int | null`, got `str` - at `$.v[0][1]`",
        "[[1,70000]]": "column 'v': 70000 is out of the range of int16 - at `$.v[...][...]`",
        "[[NaN]]": "column 'v': NaN isn't of type int16 - at `$.v[...][...]`",
        "[NaN]": "column 'v': NaN isn't of type list<item: int16> - at `$.v[...]`",
    },
    pa.map_(pa.string(), pa.int8()): {
        "[]": "Expected `object | null`, got `array` - at `$.v`",
        '{"a":1.0}': "Expected `int | null`, got `float` - at `$.v[...]`",
        '{"a":300}': "column 'v': 300 is out of the range of int8 - at `$.v[...]`",
        '{"a":NaN}': "column 'v': NaN isn't of type int8 - at `$.v[...]`",
        '{"a":1e400}': "Number out of range - at `$.v[...]`",
    },
    pa.map_(pa.int32(), pa.float64()): {
        '{"x":1}': "column 'v': Failed to parse string: 'x' as a scalar of type int32",
        '{"1":1,"01":2}': "column 'v': two names of a map are the same key",
        '{"1":' + "1" * 400 + "}": "Number out of range - at `$.v[...]`",
    },
}
VALUES = [(kind, *pair) for kind, pairs in REFUSED.items() for pair in pairs.items()]


def errors_of(schema: list, documents: list[bytes]) -> dict[int, str]:
    decoder = DocumentDecoder(json_adapter(), pa.schema(schema))
    return {row: str(error) for row, error in decoder.decode(pa.array(documents, pa.binary())).bad}


@pytest.mark.parametrize(("kind", "value", "error"), VALUES)
def test_values_that_a_type_refuses(kind, value, error):
    documents = [b'{"v":%s}' % value.encode(), b'{"v":null}', b'{"other":{"v":%s}}' % b"1"]
    assert errors_of([("v", kind)], documents) == {0: error}


FEW = [("a", pa.int8()), ("b", pa.struct([("x", pa.int8())])), ("c", pa.decimal128(4, 1))]
DOCUMENTS = {
    b'{"z":1e308}': None,
    b'{"z":[1.5e+309,-1e-999,NaN,-Inf]}': None,
    b'{"z":1e309}': None,
    b'{"z":"\\ud800"}': "Input data was truncated",
    b'{"z\\udc00":1}': "JSON is malformed: invalid utf-16 surrogate pair (byte 9)",
    b'{"z":01}': "JSON is malformed: invalid number (byte 6)",
    b'{"z":[1,]}': "JSON is malformed: trailing comma in array (byte 8)",
    b'{"z":[}': "JSON is malformed: invalid character (byte 6)",
    b'{"z" 1}': "JSON is malformed: expected ':' (byte 5)",
    b'{"z":{"a":1}"a":2}': "JSON is malformed: expected ',' or '}' (byte 12)",
    b"{1:2}": "JSON is malformed: object keys must be strings (byte 1)",
    b'{"a":1,}': "JSON is malformed: trailing comma in object (byte 7)",
    b'{"a":1}}': "JSON is malformed: trailing characters (byte 8)",
    b'\xef\xbb\xbf{"a":1}': "JSON is malformed: invalid character (byte 0)",
    b'{"z":' + b"[" * 10**5 + b"}": "text isn't JSON",
    # The first error of a document is its first wrong form, whatever its syntax is after that.
    b'{"z":{"a":"x"},"b":{"x":"y"},"a":"z"}': "Expected `int | null`, got `str` - at `$.b.x`",
    b'{"a":"x","z":}': "Expected `int | null`, got `str` - at `$.a`",
    b'{"a":1,"z":}': "JSON is malformed: invalid character (byte 11)",
    b'{"a":true,"a":1}': "Expected `int | null`, got `bool` - at `$.a`",
    # Then comes the first value that its column can't hold.
    b'{"b":{"x":300},"a":1,"a":2,"z":1e309}': "column 'b': 300 is out of the range of int8 - at `$.b.x`",
    b'{"c":1.55,"b":{"x":300}}': "column 'c': 1.55 has more digits than decimal128(4, 1)",
    b'{"b":{"x":300},"a":128}': "column 'b': 300 is out of the range of int8 - at `$.b.x`",
    b'{"b":{"x":1,"x":300}}': "column 'b': there are several values - at `$.b.x`",
    b'{"b":{"x":300},"\\u0061":1,"a":1}': "column 'b': 300 is out of the range of int8 - at `$.b.x`",
}


def test_errors_of_whole_documents():
    want = {row: error for row, error in enumerate(DOCUMENTS.values()) if error is not None}
    assert errors_of(FEW, list(DOCUMENTS)) == want


def test_many_values_of_a_member_are_refused_at_once():
    documents = [b'{%s"z":1}' % (b'"\\u0061":1,' * 50_000)]
    assert errors_of(FEW, documents) == {0: "column 'a': there are several values"}


def test_names_with_slashes():
    assert errors_of([("a/b", pa.int8())], [b'{"a/b":300}']) == {
        0: "column 'a/b': 300 is out of the range of int8"
    }


NUMBERS_WITHOUT_BOUNDS = {
    "1e99999999999999999999": 'Expected `int | null`, got `float` - at `$.v"`',
    "-1.5e-99999999999999999999": 'Expected `int | null`, got `float` - at `$.v"`',
}


@pytest.mark.parametrize(("number", "error"), NUMBERS_WITHOUT_BOUNDS.items())
def test_any_number_is_refused_by_itself(number, error):
    documents = [b'{"v\\"":%s}' % number.encode(), b'{"v\\"":1}', b'{"z":%s}' % number.encode()]
    assert errors_of([('v"', pa.int8())], documents) == {0: error}


def test_names_of_maps_may_have_several_values():
    entries = pa.struct([("x", pa.int8())])
    schema = pa.schema([("m", pa.map_(pa.string(), entries))])
    documents = [
        b'{"m":{"a":{"x":1},"b":{},"\\u0061":{"x":3}}}',
        b'{"m":{"a":{"x":"y"}},"z":1e309}',
        b'{"m":{},"z":1e309}',
        b'{"m":{},"z":NaN}',
        b'{"m":{"a":{"x":1,"x":2}}}',
    ]
    decoded = DocumentDecoder(json_adapter(), schema).decode(pa.array(documents, pa.binary()))
    assert decoded.batch["m"].to_pylist() == [
        [("a", {"x": 3}), ("b", {"x": None})], [], []
    ]  # fmt: skip
    assert [(row, str(error)) for row, error in decoded.bad] == [
        (1, "Expected `int | null`, got `str` - at `$.m[...].x`"),
        (4, "column 'm': there are several values - at `$.m[...].x`"),
    ]


def test_columns_that_are_too_deep():
    kind = pa.int64()
    for _ in range(70):
        kind = pa.list_(kind)
    with pytest.raises(ConfigurationError, match="column 'v' has more than 64 levels"):
        errors_of([("v", kind)], [])
