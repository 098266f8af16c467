"""Claims, tokens, and who lets them pass."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import logging
import pickle
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.protocol.auth.authorizers import CACHED_TOKENS
from gazette_aio.protocol.auth.claims import REQUIRED_CAPABILITIES, check_capability, default_claims
from gazette_aio.protocol.service import METHODS, SHARD_METHODS
from tests import golden, known_differences

EVERY = METHODS | SHARD_METHODS
HOUR = timedelta(hours=1)
NOW = 1_700_000_000.25
SECRET, OTHER = "c2VjcmV0", "b3RoZXI="
MALFORMED = "verifying Authorization: token is malformed: "
BAD_SIGNATURE = "verifying Authorization: token signature is invalid: "


def load(section: str) -> Any:
    cases = golden.load("auth.json")[section]
    assert cases
    return cases


def refusal(
    auth: pb.Verifier, header: str | None, require: int = 8, now: float = NOW
) -> str | None:
    try:
        auth.verify(header, pb.Capability(require), now)
    except pb.AuthorizationError as error:
        return str(error)
    return None


def signed(payload: Any, key: bytes = b"secret", /, **header: Any) -> str:
    def encode(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    head = encode(json.dumps({"alg": "HS256", **header}).encode())
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    text = f"{head}.{encode(body)}"
    return f"Bearer {text}.{encode(hmac.digest(key, text.encode(), hashlib.sha256))}"


def test_golden_capabilities():
    named = {capability.name: int(capability) for capability in pb.Capability}
    assert named | {"ALL": int(pb.Capability.ALL)} == load("capabilities")


def test_golden_keys():
    for case in load("key_lists"):
        if case["error"] is not None:
            with pytest.raises(pb.ConfigurationError) as caught:
                pb.KeyedAuth(case["keys"])
            assert str(caught.value).partition(": ")[0] == case["error"].partition(": ")[0]
            continue
        keyed = pb.KeyedAuth(case["keys"])
        assert keyed.allows_missing == case["allows_missing"]
        # Each of the keys verifies, and the first one signs.
        claims = pb.Claims(pb.Capability.READ)
        decoded = [bytes.fromhex(key) for key in case["decoded"]]
        for key in decoded:
            alone = pb.KeyedAuth(base64.b64encode(key).decode())
            token = alone.sign(claims, HOUR, NOW)
            assert refusal(keyed, f"Bearer {token}") is None
        first = pb.KeyedAuth(base64.b64encode(decoded[0]).decode())
        assert keyed.sign(claims, HOUR, NOW) == first.sign(claims, HOUR, NOW)


def test_golden_signatures():
    for case in load("sign"):
        claims = pb.Claims(
            case["cap"],
            pb.parse_label_selector(case["selector"]),
            issuer=case["iss"],
            subject=case["sub"],
            audience=tuple(case["aud"]),
        )
        keyed = pb.KeyedAuth(case["key"])
        lifetime = timedelta(seconds=case["exp"] - case["iat"])
        token = keyed.sign(claims, lifetime, case["iat"])
        assert token == case["token"]
        verified = keyed.verify(f"Bearer {token}", pb.Capability(0), case["iat"])
        assert verified.expires_at == case["exp"]
        assert verified.issued_at == case["iat"]
        assert verified.cache_key() == claims.cache_key()


def test_golden_verification():
    for case in load("verify"):
        keyed = pb.KeyedAuth(case["keys"])
        error = refusal(keyed, case["authorization"], case["require"], case["now"])
        if (reason := known_differences.REFUSED_TOKENS.get(case["note"])) is not None:
            assert case["error"] is None
            assert (error or "").startswith(MALFORMED), f"no longer differs: {reason}"
            continue
        if case["error"] is not None and case["error"].startswith((MALFORMED, BAD_SIGNATURE)):
            # Whether the signature or the form is checked first is ours to choose.
            assert (error or "").startswith((MALFORMED, BAD_SIGNATURE)), case
            continue
        assert error == case["error"], case["note"]
        if error is None:
            require = pb.Capability(case["require"])
            claims = keyed.verify(case["authorization"], require, case["now"])
            assert int(claims.capability) == case["cap"]
            assert pb.format_label_selector(claims.selector) == case["selector"]


def test_keys_in_any_order_verify():
    signing, verifying = pb.KeyedAuth(f"{SECRET},{OTHER}"), pb.KeyedAuth(f"{OTHER} {SECRET}")
    claims = pb.Claims(
        pb.Capability.LIST | pb.Capability.APPEND, pb.parse_label_selector("hi=there")
    )
    token = f"Bearer {signing.sign(claims, HOUR, NOW)}"
    verified = verifying.verify(token, pb.Capability.LIST, NOW)
    assert verified.capability == 18
    assert verified.selector == claims.selector
    assert verified.expires_at == int(NOW) + 3600
    assert refusal(verifying, token, pb.Capability.REPLICATE) == (
        "authorization is missing required REPLICATE capability"
    )
    assert (refusal(pb.KeyedAuth("AAAA"), token) or "").startswith(BAD_SIGNATURE)


def test_missing_authorization():
    assert refusal(pb.KeyedAuth(SECRET), None) == "missing or empty Authorization token"
    lenient = pb.KeyedAuth(f"{SECRET},AA==")
    claims = lenient.verify(None, pb.Capability.APPEND, NOW)
    assert claims.capability == pb.Capability.APPEND
    assert claims.selector == pb.LabelSelector()
    assert claims.expires_at == int(NOW) + 3600
    assert refusal(lenient, "") == "invalid or unsupported Authorization header (expected 'Bearer')"


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"cap": 8}, "token is missing required claim: exp claim is required"),
        ({"cap": 8, "exp": int(NOW) - 5}, "token is expired"),
        ({"cap": 8, "exp": int(NOW) - 4}, None),
        ({"cap": 8, "exp": int(NOW) + 9, "nbf": int(NOW) + 6}, "token is not valid yet"),
        ({"cap": 8, "exp": int(NOW) + 9, "nbf": int(NOW) + 5}, None),
        ({"cap": 8, "exp": int(NOW) + 9, "iat": int(NOW) + 6}, "token used before issued"),
        (
            {"cap": 8, "exp": 1, "nbf": int(NOW) + 60, "iat": int(NOW) + 60},
            "token is expired, token is not valid yet, token used before issued",
        ),
    ],
)
def test_times(payload: dict[str, Any], reason: str | None):
    expected = reason and f"verifying Authorization: token has invalid claims: {reason}"
    assert refusal(pb.KeyedAuth(SECRET), signed(payload)) == expected


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"nope",
        b"[]",
        b'"text"',
        b"NaN",
        b'{"cap": NaN}',
        b'{"cap": 8, "exp": 1e999}',
        b'{"cap": 8, "exp": "soon"}',
        b'{"cap": 8, "exp": true}',
        b'{"cap": true}',
        b'{"cap": 8.0}',
        b'{"sub": 5}',
        b'{"aud": [5]}',
        b'{"sel": []}',
        b'{"sel": {"include": {"labels": {}}}}',
        b'{"sel": {"include": {"labels": [5]}}}',
        b'{"sel": {"include": {"labels": [{"prefix": 1}]}}}',
        b'{"cap": 8, "exp": "1e10"}',
        b'{"cap": 8, "exp": null}',
        b'{"cap": 8, "exp": 1e10, "nbf": "0"}',
        b'{"cap": 8, "exp": 1e10, "iat": null}',
        b'{"cap": 8, "exp": 1e10, "exp": 1e11}',
        b'{"cap": 8, "exp": 1e10, "CAP": 12}',
        b'{"cap": 8, "exp": 1e10, "\xc5\xbfel": {}, "sel": {}}',
        b'{"cap": 8, "exp": 1e10, "extra": {"a": 1, "A": 2}}',
        b'{"cap": 8, "exp": 1e10, "sub": "\xff"}',
        b'{"cap": 8, "exp": 1e10} {}',
        b'\xef\xbb\xbf{"cap": 8, "exp": 1e10}',
        b"[" * 20_000,
        b'{"cap": ' + b"9" * 5000 + b"}",
    ],
)
def test_malformed_payloads(payload: bytes):
    error = refusal(pb.KeyedAuth(SECRET), signed(payload))
    assert error is not None
    assert error.startswith(MALFORMED)


UNSOUND_SELECTORS: list[Any] = [
    {"inclde": {}},
    {"include": {}, "exclude": {}, "only": {}},
    {"include": {"label": []}},
    {"exclude": {"labels": [], "name": "tier"}},
    {"exclude": {"labels": [{"name": "tier", "values": ["x"]}]}},
    {"exclude": {"labels": [None]}},
    {"exclude": {"labels": [{}]}},
    {"exclude": {"labels": [{"value": "x"}]}},
    {"exclude": {"labels": [{"name": "t", "value": "x"}]}},
    {"exclude": {"labels": [{"name": "name:prefix", "value": "a/"}]}},
    {"exclude": {"labels": [{"name": "tier", "value": "a b"}]}},
    {"exclude": {"labels": [{"name": "\udfffx"}]}},
    {"include": {"labels": [{"name": "tier", "value": None}]}},
    {"include": {"labels": [{"name": "tier", "value": "x", "prefix": None}]}},
    {"include": {"labels": [{"name": "tier", "value": "x"}] * 2 + [5]}},
    {"include": {"labels": [{"name": "tier", "value": "x" * 5000}]}},
]


@pytest.mark.parametrize("selector", UNSOUND_SELECTORS)
def test_a_selector_which_is_not_understood_does_not_widen_the_claims(selector: Any):
    token = signed({"cap": 8, "exp": 10**10, "sel": selector})
    error = refusal(pb.KeyedAuth(SECRET), token)
    assert (error or "").startswith(MALFORMED)
    assert len(error or "") < 200


def test_names_of_claims_ignore_case_as_peers_do():
    payload = b'{"Cap": 8, "EXP": 1e10, "\xc5\xbfel": {"Exclude": {"LABELS": [{"Name": "tier"}]}}}'
    claims = pb.KeyedAuth(SECRET).verify(signed(payload), pb.Capability.READ, NOW)
    assert pb.format_label_selector(claims.selector) == "!tier"


@pytest.mark.parametrize(
    "header",
    [{"crit": ["exp"]}, {"crit": []}, {"b64": False}, {"b64": True}, {"zip": "DEF"}],
)
def test_header_parameters_that_change_a_token_are_refused(header: dict[str, Any]):
    token = signed({"cap": 8, "exp": 10**10}, **header)
    assert (refusal(pb.KeyedAuth(SECRET), token) or "").startswith(MALFORMED)


def test_header_parameters_that_choose_a_key_are_ignored():
    header: dict[str, Any] = {
        "kid": "../../dev/null",
        "jwk": {"kty": "oct", "k": "b3RoZXI"},
        "jku": "http://x/",
    }
    payload = {"cap": 8, "exp": 10**10}
    assert refusal(pb.KeyedAuth(SECRET), signed(payload, **header)) is None
    forged = signed(payload, b"other", **header)
    assert "signature is invalid" in (refusal(pb.KeyedAuth(SECRET), forged) or "")


def test_a_header_with_two_algorithms_is_refused():
    head = base64.urlsafe_b64encode(b'{"alg":"none","alg":"HS256"}').rstrip(b"=").decode()
    _, body, signature = signed({"cap": 8, "exp": 10**10}).removeprefix("Bearer ").split(".")
    text = f"{head}.{body}"
    key = base64.b64decode(SECRET)
    resigned = base64.urlsafe_b64encode(hmac.digest(key, text.encode(), hashlib.sha256))
    for last in (signature, "", resigned.rstrip(b"=").decode()):
        error = refusal(pb.KeyedAuth(SECRET), f"Bearer {text}.{last}")
        assert (error or "").startswith(MALFORMED)


def test_each_token_has_one_text():
    """No change of a text leaves a token valid: not of bits which no byte holds either."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=+/ .\n"
    keyed = pb.KeyedAuth(SECRET)
    token = keyed.sign(pb.Claims(pb.Capability.READ, pb.parse_label_selector("a1=b")), HOUR, NOW)
    assert refusal(keyed, f"Bearer {token}") is None
    rng = random.Random(7)
    for at in range(len(token)):
        last = at + 1 == len(token) or token[at + 1] == "."
        for char in alphabet if last else rng.sample(alphabet, 4):
            if char == token[at]:
                continue
            for changed in (token[:at] + char + token[at + 1 :], token[:at] + char + token[at:]):
                assert refusal(keyed, f"Bearer {changed}") is not None, (at, char)
    for changed in (f" {token}", f"{token} ", f"{token}=", f"{token}\n", token[:-1]):
        assert refusal(keyed, f"Bearer {changed}") is not None


def test_text_of_payloads_fits_messages():
    payload = b'{"cap": 8, "exp": 1e10, "sub": "\\ud800"}'
    claims = pb.KeyedAuth(SECRET).verify(signed(payload), pb.Capability.READ, NOW)
    assert claims.subject == "\ufffd"
    assert claims.expires_at == 10**10


@pytest.mark.parametrize(
    "algorithm",
    ["none", "HS512", "RS256", "hs256", "", "\ud800x", "x" * 9999, None, ["HS256"], {"HS256": 1}],
)
def test_algorithms(algorithm: Any):
    error = refusal(pb.KeyedAuth(SECRET), signed({"cap": 8, "exp": 10**10}, alg=algorithm))
    assert error == f"{BAD_SIGNATURE}signing method is none of HS256, HS384"


@pytest.mark.parametrize("token", ["a-token\n", "a\0token", "t\u00f6ken"])
def test_a_token_which_can_not_be_sent_is_refused(token: str):
    with pytest.raises(pb.ConfigurationError) as caught:
        pb.BearerAuth(token)
    assert "ken" not in str(caught.value).replace("token", "")


def test_headers_that_are_no_objects():
    assert (refusal(pb.KeyedAuth(SECRET), "Bearer W10.e30.") or "").startswith(MALFORMED)


def test_only_signed_payloads_are_decoded():
    forged = signed(b"[" * 20_000, b"other")
    assert (refusal(pb.KeyedAuth(SECRET), forged) or "").startswith(BAD_SIGNATURE)


def test_names_of_members_do_not_lengthen_refusals():
    token = signed({"cap": 8, "exp": 10**10, "sel": {"x" * 9999: 1}})
    assert len(refusal(pb.KeyedAuth(SECRET), token) or "") < 300


def test_a_token_too_long_is_refused():
    token = signed({"cap": 8, "exp": 10**10, "sub": "x" * 100_000})
    assert (refusal(pb.KeyedAuth(SECRET), token) or "").startswith(MALFORMED)


def test_tokens_are_signed_anew_at_half_of_their_life():
    keyed = pb.KeyedAuth(SECRET)
    claims = pb.Claims(pb.Capability.READ, pb.parse_label_selector("name=a/b"))
    first = keyed.sign(claims, HOUR, NOW)
    equal = pb.Claims(pb.Capability.READ, pb.parse_label_selector("name = a/b"))
    assert keyed.sign(equal, HOUR, NOW + 1799) is first
    second = keyed.sign(claims, HOUR, NOW + 1800)
    assert second != first
    assert keyed.sign(claims, HOUR, NOW + 1900) is second
    # Another lifetime has a token of its own, and a clock which was set back gives a new one.
    assert keyed.sign(claims, 2 * HOUR, NOW + 1900) != second
    assert keyed.sign(claims, HOUR, NOW - 1000) != second


def test_the_number_of_kept_tokens_is_bounded():
    keyed = pb.KeyedAuth(SECRET)
    claims = [
        pb.Claims(pb.Capability.READ, subject=str(index)) for index in range(CACHED_TOKENS + 100)
    ]
    first = [keyed.sign(claim, HOUR, NOW) for claim in claims]
    assert [keyed.sign(claim, HOUR, NOW + 1) for claim in claims[100:]] == first[100:]
    assert keyed.sign(claims[99], HOUR, NOW + 1) != first[99]


async def test_authorization_of_requests():
    keyed = pb.KeyedAuth(SECRET, clock=lambda: NOW)
    claims = pb.Claims(pb.Capability.READ)
    ((name, value),) = await keyed.authorize(claims, HOUR)
    assert name == "authorization"
    assert keyed.verify(value, pb.Capability.READ, NOW).expires_at == int(NOW) + 3600
    assert await pb.BearerAuth("a-token").authorize(claims, HOUR) == (
        ("authorization", "Bearer a-token"),
    )
    noop = pb.NoopAuth()
    assert await noop.authorize(claims, HOUR) == ()
    assert noop.verify(None, pb.Capability.APPLY, NOW) == pb.Claims(pb.Capability.APPLY)


def test_secrets_never_show(caplog: pytest.LogCaptureFixture):
    keyed = pb.KeyedAuth(f"{SECRET},AA==")
    token = keyed.sign(pb.Claims(pb.Capability.READ), HOUR, NOW)
    shown = [repr(keyed), str(keyed), repr(pb.BearerAuth(token)), repr(pb.NoopAuth())]
    with caplog.at_level(logging.DEBUG):
        shown.append(str(refusal(pb.KeyedAuth(OTHER), f"Bearer {token}")))
    with pytest.raises(pb.ConfigurationError) as caught:
        pb.KeyedAuth("bad*key")
    shown.append(str(caught.value))
    for text in [*shown, caplog.text]:
        assert "secret" not in text
        assert SECRET not in text
        assert token not in text
        assert "bad*key" not in text
    assert repr(keyed) == "KeyedAuth(1 keys, allows_missing=True)"


def test_options_pickle_without_tokens():
    keyed = pb.KeyedAuth(SECRET)
    token = keyed.sign(pb.Claims(pb.Capability.READ), HOUR, NOW)
    restored = pickle.loads(pickle.dumps(keyed))
    assert token not in str(pickle.dumps(keyed))
    assert restored.sign(pb.Claims(pb.Capability.READ), HOUR, NOW) == token
    claims = pb.Claims(pb.Capability.READ, pb.parse_label_selector("a1=b"), subject="x")
    assert pickle.loads(pickle.dumps(claims)) == claims


@pytest.mark.parametrize(
    ("actual", "require", "error"),
    [
        (10, 4, "authorization is missing required APPLY capability"),
        (10, 24, "authorization is missing required APPEND capability"),
        (
            10,
            65536,
            "authorization is missing required capability (have 1010, but require 10000000000000000)",
        ),
        (10, 131076, "authorization is missing required APPLY capability"),
    ],
)
def test_capabilities(actual: int, require: int, error: str):
    with pytest.raises(pb.AuthorizationError) as caught:
        check_capability(actual, require)
    assert str(caught.value) == error
    check_capability(actual | require, require)
    check_capability(pb.Capability.ALL, require)


@pytest.mark.parametrize(
    ("request_", "capability", "selector"),
    [
        (pb.ListRequest(selector=pb.parse_label_selector("a1=b")), pb.Capability.LIST, "a1=b"),
        (pb.ApplyRequest(), pb.Capability.APPLY, ""),
        (pb.ReadRequest(journal="a/b;meta"), pb.Capability.READ, "name=a/b"),
        (pb.AppendRequest(journal="a/b;meta"), pb.Capability.APPEND, "name=a/b"),
        (pb.FragmentsRequest(journal="a/b"), pb.Capability.READ, "name=a/b"),
        (pb.FragmentStoreHealthRequest(), pb.Capability.READ, ""),
        (
            pb.ReplicateRequest(proposal=pb.Fragment(journal="a/b")),
            pb.Capability.REPLICATE,
            "name=a/b",
        ),
        (
            pb.consumer.ListRequest(selector=pb.parse_label_selector("id=x")),
            pb.Capability.LIST,
            "id=x",
        ),
        (pb.consumer.ApplyRequest(), pb.Capability.APPLY, ""),
        (pb.consumer.StatRequest(shard="a/shard"), pb.Capability.READ, "id=a/shard"),
        (pb.consumer.GetHintsRequest(shard="a/shard"), pb.Capability.READ, "id=a/shard"),
        (
            pb.consumer.UnassignRequest(shards=["two", "one", "two"]),
            pb.Capability.APPLY,
            "id in (one,two)",
        ),
    ],
)
def test_default_claims(request_: Any, capability: pb.Capability, selector: str):
    claims = default_claims(request_)
    assert claims.capability == capability
    assert pb.format_label_selector(claims.selector) == selector
    path = next(path for path, method in EVERY.items() if method.request is type(request_))
    assert REQUIRED_CAPABILITIES[path] == capability


def test_only_requests_have_default_claims():
    with pytest.raises(TypeError, match="not a request: ReadResponse"):
        default_claims(pb.ReadResponse())


def test_claims_of_the_context():
    outer, inner = pb.Claims(pb.Capability.LIST), pb.Claims(pb.Capability.APPLY)
    assert pb.current_claims() is None
    with pb.with_claims(outer) as given_claims:
        assert given_claims is outer
        with contextlib.suppress(RuntimeError), pb.with_claims(inner):
            assert pb.current_claims() is inner
            raise RuntimeError
        assert pb.current_claims() is outer
        with pb.with_claims(None):
            assert pb.current_claims() is None
    assert pb.current_claims() is None


@given(
    st.text(max_size=60)
    | st.lists(
        st.sampled_from([".", "Bearer ", "e30", "eyJhbGciOiJIUzI1NiJ9", "é", "=", "W10"]),
        max_size=8,
    ).map("".join)
)
def test_any_header_is_valid_or_an_authorization_error(header: str):
    assert refusal(pb.KeyedAuth(SECRET), header) is not None
    assert refusal(pb.KeyedAuth(SECRET), f"Bearer {header}") is not None
