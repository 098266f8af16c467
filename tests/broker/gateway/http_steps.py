"""Steps of recorded scenarios which are requests over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import http.client
import json
from collections.abc import Callable
from typing import Any

Json = Any
Step = dict[str, Any]
Unbind = Callable[[str], str]

_UNTOLD = ("Date", "Content-Length", "Transfer-Encoding", "Connection")


class HttpSteps:
    """Performs HTTP steps of one scenario.

    `address` is that of the gateway, `unbind` puts names of variables in place of their values.
    """

    def __init__(self, address: str, unbind: Unbind) -> None:
        self._host, _, port = address.rpartition(":")
        self._port = int(port)
        self._unbind = unbind

    async def http(self, step: Step, metadata: list[tuple[str, str]]) -> Json:
        """Perform an `http` step."""
        return await asyncio.to_thread(self._request, step["http"], dict(metadata))

    def _request(self, request: Json, headers: dict[str, str]) -> Json:
        connection = http.client.HTTPConnection(self._host, self._port, timeout=30)
        with contextlib.closing(connection):
            body = request["body"]["utf8"].encode() if "body" in request else None
            headers = {**headers, **request.get("headers", {})}
            connection.request(request["method"], request["path"], body=body, headers=headers)
            response = connection.getresponse()
            content = response.read(request.get("read_bytes"))
            return self._outcome(response.status, response.getheaders(), content)

    async def http_raw(self, step: Step) -> Json:
        """Perform an `http_raw` step."""
        async with asyncio.timeout(30):
            received = await exchange(
                self._host,
                self._port,
                step["http_raw"].encode(),
                half_close=step.get("shutdown_write", False),
            )
        status, headers, body, trailers = split_response(received)
        outcome = self._outcome(status, headers, body)
        if trailers is not None:
            outcome["trailers"] = trailers
        return outcome

    def _outcome(self, status: int, headers: list[tuple[str, str]], content: bytes) -> Json:
        shown = {name: self._unbind(value) for name, value in headers if name not in _UNTOLD}
        if (modified := shown.get("X-Fragment-Last-Modified")) is not None:
            assert email.utils.parsedate_to_datetime(modified).timestamp() > 1e9
            assert modified.endswith(" GMT")
            shown["X-Fragment-Last-Modified"] = "${http_date}"
        return {
            "status": status,
            "headers": shown,
            "body": {"utf8": self._unbind(content.decode())},
        }

    def normalize(self, how: str, outcome: Json) -> Json:
        """Apply a normalization of HTTP outcomes."""
        if how == "status_only":
            content_type = outcome["headers"].get("Content-Type")
            return {"status": outcome["status"], "content_type": content_type}
        assert how == "json_lines"
        lines = outcome.pop("body")["utf8"].split("\n")
        assert lines.pop() == "", "the last line doesn't end"
        outcome["json_lines"] = [_json_form(json.loads(line)) for line in lines]
        return outcome


def _json_form(value: Json, key: str = "") -> Json:
    match value:
        case dict() if key == "etcd":
            valid = all(int(item) != 0 for item in value.values()) and len(value) == 4
            return "${etcd}" if valid else value
        case dict():
            return {name: _json_form(item, name) for name, item in value.items()}
        case list():
            return [_json_form(item, key) for item in value]
        case str() if key in ("modRevision", "createRevision") and value.isdecimal():
            return "${rev_string}"
        case str() if key == "zone":
            return "${zone}"
        case _:
            return value


async def exchange(host: str, port: int, sent: bytes, *, half_close: bool = False) -> bytes:
    """Send bytes over a connection of their own, and return all that's received until its end."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(sent)
        await writer.drain()
        if half_close:
            writer.write_eof()
        return await reader.read()
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


Response = tuple[int, list[tuple[str, str]], bytes, dict[str, str] | None]


def split_response(received: bytes) -> Response:
    """Return status, headers, body and, of a chunked body, trailers of a response."""
    head, _, rest = received.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    headers = [_pair(line) for line in lines[1:]]
    status = int(lines[0].split()[1])
    if ("Transfer-Encoding", "chunked") not in headers:
        return status, headers, rest, None
    body = b""
    while True:
        size, _, rest = rest.partition(b"\r\n")
        if (length := int(size, 16)) == 0:
            break
        body += rest[:length]
        assert rest[length : length + 2] == b"\r\n"
        rest = rest[length + 2 :]
    *trailers, empty, end = rest.decode().split("\r\n")
    assert empty == end == ""
    return status, headers, body, dict(map(_pair, trailers))


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition(": ")
    return name, value
