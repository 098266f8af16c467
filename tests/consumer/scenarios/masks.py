"""Variables of scenarios: what they're bound to, and masks of values that members choose."""

from __future__ import annotations

import json
import re
from typing import Any

from gazette_aio.protocol import consumer as pc
from tests.consumer.scenarios.group import Entry, Group
from tests.consumer.scenarios.messages import to_dict
from tests.consumer.scenarios.recorded import message_and_clock

Json = Any

_POSITIONS = {
    "first_checksum": "${checksum}",
    "last_checksum": "${checksum}",
    "checksum": "${checksum}",
    "first_offset": "${offset}",
    "last_offset": "${offset}",
    "first_seq_no": "${seq}",
    "last_seq_no": "${seq}",
    "fnode": "${seq}",
    "seq_no": "${seq}",
}
_NUMBERED = {"mod_revision": "rev", "create_revision": "rev", "author": "author"}


class Masks:
    """Variables of a run of a scenario."""

    def __init__(self, group: Group, namespace: str) -> None:
        self.variables: dict[str, Any] = {"ns": namespace, "prefix": group.prefix}
        self.roles: dict[str, str] = {}
        """Roles of members, by their names."""
        self._group = group
        self._numbers: dict[str, dict[Any, int]] = {}

    def bind(self, value: Json) -> Json:
        """Return a part of a step with its variables replaced."""
        if isinstance(value, str):
            whole = re.fullmatch(r"\$\{([^}]+)\}", value)
            if whole and whole[1] in self.variables:
                return self.variables[whole[1]]
            return re.sub(r"\$\{([^}]+)\}", lambda m: str(self.variables.get(m[1], m[0])), value)
        if isinstance(value, list):
            return [self.bind(each) for each in value]
        if isinstance(value, dict):
            return {self.bind(key): self.bind(each) for key, each in value.items()}
        return value

    def number(self, kind: str, value: Any) -> str:
        """Return a mask that is the same for equal values."""
        numbers = self._numbers.setdefault(kind, {})
        return f"${{{kind}.{numbers.setdefault(value, len(numbers) + 1)}}}"

    def text(self, text: str) -> str:
        """Mask names and addresses within a text."""
        text = text.replace(f"{self._group.prefix}/", "${prefix}/")
        text = text.replace(self.variables["ns"], "${ns}")
        for member in self._group.members.values():
            name = self._name(member.name)
            text = text.replace(member.endpoint, f"${{endpoint.{name}}}")
            text = text.replace(member.address, f"${{address.{name}}}")
            text = text.replace(member.suffix, f"${{suffix.{name}}}")
        return text

    def mask(self, value: Json, key: str = "") -> Json:
        """Mask a value, which may be a whole response."""
        match value:
            case {"cluster_id": _} if key == "etcd":
                return "${etcd}"
            case {"zone": zone, "suffix": suffix, **rest} if not rest:
                for member in self._group.members.values():
                    if (member.zone, member.suffix) == (zone, suffix):
                        return f"${{member.{self._name(member.name)}}}"
                return value
            case dict():
                return {self.text(name): self.mask(each, name) for name, each in value.items()}
            case list():
                return [self.mask(each, key) for each in value]
            case str():
                return self.text(value)
            case int() if key in _NUMBERED and value:
                return self.number(_NUMBERED[key], value)
            case _:
                return _POSITIONS.get(key, value)

    def line(self, line: str) -> Json:
        """Return a line of a journal with its producer masked, unless a step has given it."""
        return self._masked_producer(message_and_clock(line)[0])

    def lines(self, content: str) -> Json:
        """Return the lines of a journal, and whether clocks of no producer fall."""
        rows = [message_and_clock(line) for line in content.splitlines()]
        last: dict[str, int] = {}
        in_order = True
        for message, clock in rows:
            in_order &= last.get(message["producer"], 0) <= clock
            last[message["producer"]] = clock
        messages = [self._masked_producer(message) for message, _ in rows]
        return {"messages": messages, "clocks_in_order": in_order}

    def _masked_producer(self, message: Json) -> Json:
        producer = message["producer"]
        is_given = producer.startswith("0100")
        return {**message, "producer": producer if is_given else self.number("producer", producer)}

    def stored(self, entry: Entry) -> Json:
        """Return the decoded value of a key."""
        prefix = self._group.prefix
        kinds: dict[str, Any] = {
            "members": pc.ConsumerSpec,
            "items": pc.ShardSpec,
            "assign": pc.ReplicaStatus,
        }
        for name, kind in kinds.items():
            if entry.key.startswith(f"{prefix}/{name}/"):
                return self.mask(to_dict(kind.FromString(entry.value)))
        try:
            return {"json": self.mask(json.loads(entry.value))}
        except ValueError:
            return {"text": entry.value.decode(errors="replace")}

    def lease(self, entry: Entry) -> str | None:
        """Return whose lease a key has."""
        for member in self._group.members.values():
            if entry.lease and member.lease == entry.lease:
                return f"${{lease.{self._name(member.name)}}}"
        return self.number("lease", entry.lease) if entry.lease else None

    def _name(self, name: str) -> str:
        return self.roles.get(name, name)
