"""Errors of JSON documents: what each type refuses, in the words that users see."""

from __future__ import annotations

import pyarrow as pa
import pytest

from gazette_aio.message import json_adapter
from gazette_aio.message.columns.documents.decoder import DocumentDecoder
from gazette_aio.protocol.errors import ConfigurationError

REFUSED: dict[pa.DataType, dict[str, str]] = {
    pa.int8(): {
        "NaN": "column 'v': Failed to convert JSON to int8, couldn't parse:NaN",
        "1.5": "Expected `int | null`, got `float` - at `$.v`",
        "1e400": "Number out of range - at `$.v`",
        '"x"': "Expected `int | null`, got `str` - at `$.v`",
        "true": "Expected `int | null`, got `bool` - at `$.v`",
        "[]": "Expected `int | null`, got `array` - at `$.v`",
        "128": "column 'v': Value 128 too large to fit in C integer type",
        "1e2": "Expected `int | null`, got `float` - at `$.v`",
        "00": "JSON is malformed: invalid number (byte 6)",
        "-": "JSON is malformed: invalid character (byte 6)",
        "999999999999999999999999999999": "column 'v': Python int too large to convert to C long",
        "-Infinity": "column 'v': Failed to convert JSON to int8, couldn't parse:-Infinity",
    },
    pa.int64(): {
        "9223372036854775808": "column 'v': Python int too large to convert to C long",
    },
    pa.uint64(): {
        "-1": "column 'v': can't convert negative value to unsigned int",
        "-0": "column 'v': Failed to convert JSON to uint64, couldn't parse:-0",
        "18446744073709551616": "column 'v': Python int too large to convert to C unsigned long",
    },
    pa.bool_(): {
        "NaN": "column 'v': Column(/v) changed from boolean to number",
        "1": "Expected `bool | null`, got `int` - at `$.v`",
        "tru": "JSON is malformed: invalid character (byte 9)",
    },
    pa.string(): {
        "NaN": "column 'v': Column(/v) changed from string to number",
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
        "1" * 400: "column 'v': number is not finite",
        "1.7976931348623159e308": "column 'v': number is not finite",
    },
    pa.decimal128(6, 2): {
        "NaN": "column 'v': The string 'NaN' is not a valid decimal128 number",
        '"NaN"': "column 'v': The string 'NaN' is not a valid decimal128 number",
        '"x"': "Invalid decimal string - at `$.v`",
        "true": "Expected `decimal | null`, got `bool` - at `$.v`",
        "1e400": "column 'v': The string '1E+400' cannot be represented as decimal128",
        "1.234": "column 'v': Rescaling Decimal value would cause data loss",
        "10000": "column 'v': number has more digits than decimal128(6, 2)",
        "9999.999": "column 'v': Rescaling Decimal value would cause data loss",
        '" 1"': "column 'v': The string ' 1' is not a valid decimal128 number",
        '"1_0"': "column 'v': The string '1_0' is not a valid decimal128 number",
        "1"
        * 50: "column 'v': Decimal type with precision 50 does not fit into precision inferred from first array element: 6",
    },
    pa.decimal128(38, 10): {
        "6" * 29: "column 'v': Rescaling Decimal value would cause data loss",
    },
    pa.list_(pa.decimal128(38, 10)): {
        f"[{'6' * 29}]": "column 'v': Failed to convert JSON to decimal128(38, 10): "
        f"{'6' * 29} requires scale 0",
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
        "NaN": "column 'v': Column(/v) changed from object to number",
        "1": "Expected `object | null`, got `int` - at `$.v`",
        "[]": "Expected `object | null`, got `array` - at `$.v`",
        '{"x":1.5}': "Expected `int | null`, got `float` - at `$.v.x`",
        '{"x":300}': "column 'v': Failed to convert JSON to int8, couldn't parse:300",
        '{"x":NaN}': "column 'v': Failed to convert JSON to int8, couldn't parse:NaN",
        '{"x":1,"x":2}': "column 'v': Column(/v/x) was specified twice",
        '{"x":1,"\\u0078":2}': "column 'v': Column(/v/x) was specified twice",
        '{"l":1}': "Expected `array | null`, got `int` - at `$.v.l`",
        '{"l":[true]}': "Expected `decimal | null`, got `bool` - at `$.v.l[0]`",
        '{"l":[12.45]}': "column 'v': Failed to convert JSON to decimal128(4, 1): 12.45 requires scale 2",
        '{"l":[123.45]}': "column 'v': Failed to convert JSON to decimal128(4, 1): 123.45 requires precision 5",
        '{"l":[1234]}': "column 'v': number has more digits than decimal128(4, 1)",
        '{"l":["x"]}': "Invalid decimal string - at `$.v.l[0]`",
        '{"l":[null,1e40]}': "column 'v': The string '1e40' cannot be represented as decimal128",
        '{"l":[NaN]}': "column 'v': The string 'NaN' is not a valid decimal128 number",
    },
    pa.list_(pa.list_(pa.int16())): {
        "{}": "Expected `array | null`, got `object` - at `$.v`",
        "[1]": "Expected `array | null`, got `int` - at `$.v[0]`",
        '[[1,"a"]]': "Expected `int | null`, got `str` - at `$.v[0][1]`",
        "[[1,70000]]": "column 'v': Failed to convert JSON to int16, couldn't parse:70000",
        "[[NaN]]": "column 'v': Failed to convert JSON to int16, couldn't parse:NaN",
        "[NaN]": "column 'v': Column(/v/[]) changed from array to number",
    },
    pa.map_(pa.string(), pa.int8()): {
        "[]": "Expected `object | null`, got `array` - at `$.v`",
        '{"a":1.0}': "Expected `int | null`, got `float` - at `$.v[...]`",
        '{"a":300}': "column 'v': Value 300 too large to fit in C integer type",
        '{"a":NaN}': "text isn't JSON",
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
    b'{"z":1e309}': "column 'a': Number too big to be stored in double.",
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
    # Then come members with several values, and columns in their order.
    b'{"b":{"x":300},"a":1,"a":2,"z":1e309}': "column 'a': there are several values",
    b'{"c":1.55,"b":{"x":300}}': "column 'c': Rescaling Decimal value would cause data loss",
    b'{"b":{"x":300},"a":128}': "column 'a': Value 128 too large to fit in C integer type",
    b'{"b":{"x":1,"x":300}}': "column 'b': Column(/b/x) was specified twice",
    b'{"b":{"x":300},"\\u0061":1,"a":1}': "column 'a': Column(/a) was specified twice",
}


def test_errors_of_whole_documents():
    want = {row: error for row, error in enumerate(DOCUMENTS.values()) if error is not None}
    assert errors_of(FEW, list(DOCUMENTS)) == want


def test_many_values_of_a_member_are_refused_at_once():
    documents = [b'{%s"z":1}' % (b'"\\u0061":1,' * 50_000)]
    assert errors_of(FEW, documents) == {0: "column 'a': Column(/a) was specified twice"}


def test_names_with_slashes():
    assert errors_of([("a/b", pa.int8())], [b'{"a/b":300}']) == {
        0: "column 'a/b': Value 300 too large to fit in C integer type"
    }


def test_members_of_maps_may_have_several_values():
    entries = pa.struct([("x", pa.int8())])
    schema = pa.schema([("m", pa.map_(pa.string(), entries))])
    documents = [
        b'{"m":{"a":{"x":1,"x":2},"b":{},"\\u0061":{"x":3}}}',
        b'{"m":{"a":{"x":"y"}},"z":1e309}',
        b'{"m":{},"z":1e309}',
        b'{"m":{},"z":NaN}',
    ]
    decoded = DocumentDecoder(json_adapter(), schema).decode(pa.array(documents, pa.binary()))
    assert decoded.batch["m"].to_pylist() == [[("a", {"x": 3}), ("b", {"x": None})], []]
    assert [(row, str(error)) for row, error in decoded.bad] == [
        (1, "Expected `int | null`, got `str` - at `$.m[...].x`"),
        (3, "text isn't JSON"),
    ]


def test_columns_that_are_too_deep():
    kind = pa.int64()
    for _ in range(70):
        kind = pa.list_(kind)
    with pytest.raises(ConfigurationError, match="column 'v' has more than 64 levels"):
        errors_of([("v", kind)], [])
