"""Golden data in the forms of this package."""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

import gazette_aio.protocol as pb
from gazette_aio.protocol import consumer, recoverylog

_PACKAGES = {"protocol": pb, "consumer": consumer, "recoverylog": recoverylog}


def message_class(full_name: str) -> type[Message]:
    """Return the class of a message by its full name."""
    package, *names = full_name.split(".")
    return functools.reduce(getattr, names, _PACKAGES[package])  # type: ignore[return-value]


def parse(case: dict[str, Any]) -> Message:
    """Return the message of a case with `type` and `proto`."""
    return message_class(case["type"]).FromString(base64.b64decode(case["proto"]))


def labels(listed: list[list[Any]]) -> pb.LabelSet:
    """Return a label set, which needn't be valid."""
    return pb.LabelSet(
        labels=[
            pb.Label(name=name, value=value, prefix=bool(rest)) for name, value, *rest in listed
        ]
    )


def listed(label_set: pb.LabelSet) -> list[list[Any]]:
    """Return a label set as the golden data spells it."""
    return [
        [label.name, label.value, True] if label.prefix else [label.name, label.value]
        for label in label_set.labels
    ]


def selector(case: dict[str, Any]) -> pb.LabelSelector:
    """Return a selector, which needn't be valid."""
    return pb.LabelSelector(include=labels(case["include"]), exclude=labels(case["exclude"]))


def listed_selector(value: pb.LabelSelector) -> dict[str, Any]:
    """Return a selector as the golden data spells it."""
    return {"include": listed(value.include), "exclude": listed(value.exclude)}


def fragment(case: dict[str, Any]) -> pb.Fragment:
    """Return a fragment."""
    return pb.Fragment(
        journal=case["journal"],
        begin=case["begin"],
        end=case["end"],
        sum=pb.sum_from_digest(bytes.fromhex(case["sum"])),
        compression_codec=pb.CompressionCodec.Value(case["compression_codec"]),
        path_postfix=case["path_postfix"],
    )


def spec(json: dict[str, Any]) -> pb.JournalSpec:
    """Return a journal specification of its JSON form."""
    return json_format.ParseDict(json, pb.JournalSpec())


def without_empty(message: Message) -> Any:
    """Return the JSON form of a message, in which empty messages and zero durations don't count."""
    return pruned(json_format.MessageToDict(message))


def pruned(value: Any) -> Any:
    """Return a JSON form without what stands for an absent or empty value."""
    if isinstance(value, dict):
        members = {name: pruned(member) for name, member in value.items()}
        return {
            name: member for name, member in members.items() if member not in ({}, "0s", None, "")
        }
    return [pruned(item) for item in value] if isinstance(value, list) else value


def unix_nanoseconds(text: str) -> int:
    """Return a time of UTC, given to the nanosecond."""
    match = re.fullmatch(r"(.*?)(?:\.(\d+))?Z", text)
    assert match is not None
    since = datetime.fromisoformat(f"{match[1]}+00:00") - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 10**9 + int((match[2] or "").ljust(9, "0"))


def error_of(call: Callable[..., object], *args: Any, **kwargs: Any) -> str | None:
    """Return the text of the validation error which a call raises, or None."""
    try:
        call(*args, **kwargs)
    except pb.ValidationError as error:
        return str(error)
    return None


def agrees(error: str | None, case: dict[str, Any]) -> bool:
    """Tell whether an error text is that of a case, as far as it's stable."""
    if error == case["error"]:
        return True
    if error is None or case["error"] is None:
        return False
    return "stable_prefix" in case and error.startswith(case["stable_prefix"])
