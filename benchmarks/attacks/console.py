"""Forged edits, hostile texts and oversized requests at the console in the browser.

Invariants: no spec changes but by sound edits; each answer has a status that is expected, and all
headers of the console; no content ends its event; connections whose requests are never sent
end; and others are served meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import random
import time
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import aiohttp

import gazette_aio.protocol as pb
from benchmarks.attacks.bystander import SERVED_SECONDS
from benchmarks.soaks.invariant import require
from gazette_aio import connect
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client import get_journal
from gazette_aio.console import Console
from gazette_aio.console.guards import HEADERS
from gazette_aio.console.specs import MAX_TEXT
from gazette_aio.testing import create_journals, journal_spec

if TYPE_CHECKING:
    from gazette_aio import JournalClient

_JOURNAL: Final = "attack/console"
_KEY: Final = "c2VjcmV0"
_OTHER_KEY: Final = "b3RoZXI="
_STATUSES: Final = frozenset({200, 400, 401, 403, 404, 405, 409, 413})
_HALF_SENT: Final = 200
"""Connections that wait at the same time for the rest of a request."""
_READ: Final = pb.Capability.LIST | pb.Capability.READ
_SMUGGLED: Final = (
    b"POST /api/apply HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
)
_SCRIPTS: Final = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\n\ndata: {}\n\n",
    "\r\nSet-Cookie: a=b\r\n\r\n",
    "\x00\x1b[2J\u2028\u2029\ufeff\u202e",
    "../../../etc/passwd",
    "${alert(1)}{{7*7}}%0a%0d",
    "\ud800",
)


async def attack(duration: float, seed: int) -> None:
    """Run for `duration` seconds."""
    rng = random.Random(seed)
    # It logs each request that is none.
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(EmbeddedBroker(auth_keys=_KEY))
        client = await stack.enter_async_context(connect(broker.endpoint, auth=pb.KeyedAuth(_KEY)))
        labels = {"content-type": "application/x-ndjson"}
        await create_journals(client, journal_spec(_JOURNAL, labels=labels))
        console = Console(lambda auth: connect(broker.endpoint, auth=auth))
        await console.start()
        stack.push_async_callback(console.stop, 1.0)
        page = await stack.enter_async_context(aiohttp.ClientSession(console.url))
        attacker = _Attacker(rng, page, client, await _tokens(rng), url=console.url)
        end = time.monotonic() + duration
        while not attacker.rounds or time.monotonic() < end:
            async with asyncio.timeout(SERVED_SECONDS), asyncio.TaskGroup() as group:
                for _ in range(_HALF_SENT):
                    group.create_task(attacker.send_half())
                await attacker.attack_once()
    print(f"console: {attacker.rounds} rounds of requests refused, intact", flush=True)


async def _tokens(rng: random.Random) -> list[str | None]:
    """Return headers of tokens that permit no edit of the journal."""
    applies = _READ | pb.Capability.APPLY
    beyond = pb.parse_label_selector("name:prefix=other/")
    sound = await _token(_KEY, pb.Claims(capability=applies))
    cut = rng.randrange(10, len(sound) - 1)
    return [
        None,
        await _token(_KEY, pb.Claims(capability=_READ)),
        await _token(_KEY, pb.Claims(capability=pb.Capability.APPLY, selector=beyond)),
        await _token(_OTHER_KEY, pb.Claims(capability=applies)),
        sound[:cut],
        f"{sound} {sound}",
        sound.replace("Bearer", "Basic"),
        "Bearer " + "x" * 4000,
    ]


async def _token(key: str, claims: pb.Claims) -> str:
    return dict(await pb.KeyedAuth(key).authorize(claims, timedelta(hours=1)))["authorization"]


class _Attacker:
    def __init__(
        self,
        rng: random.Random,
        page: aiohttp.ClientSession,
        client: JournalClient,
        tokens: list[str | None],
        *,
        url: str,
    ) -> None:
        self._url = urlsplit(url)
        self._rng = rng
        self._page = page
        self._client = client
        self._tokens = tokens
        self.rounds = 0

    async def attack_once(self) -> None:
        """Attack in each way, and require that nothing has changed."""
        before = await get_journal(self._client, _JOURNAL)
        for way in (self._forged, self._cross_site, self._hostile, self._garbage, self._scripts):
            await way()
        after = await get_journal(self._client, _JOURNAL)
        require(after == before, "the spec has changed")
        sound = await self._sound()
        await self._request("GET", f"/api/journal?name={_JOURNAL}", sound, expected={200})
        self.rounds += 1

    async def send_half(self) -> None:
        """Send no more than a part of a request, and require that the connection ends."""
        body = b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        whole = b"POST /api/heads HTTP/1.1\r\nHost: localhost\r\n" + body
        reader, writer = await self._connected()
        with contextlib.suppress(ConnectionError):
            writer.write(whole[: self._rng.randrange(len(whole) + 1)])
            answer = await reader.read()
            require(answer[:13] in (b"", b"HTTP/1.1 408 "), f"half a request has {answer!r}")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._url.hostname, self._url.port)

    async def _sound(self) -> dict[str, str]:
        claims = pb.Claims(capability=_READ | pb.Capability.APPLY)
        return {"Authorization": await _token(_KEY, claims)}

    async def _edit(self) -> dict[str, Any]:
        """Return a sound edit."""
        shown = await self._request("GET", f"/api/spec?name={_JOURNAL}", await self._sound())
        return {**shown, "text": f"{shown['text']}max_append_rate: {self._rng.randrange(1, 99)}\n"}

    async def _forged(self) -> None:
        """Apply a sound edit, without a token that permits it."""
        edit = await self._edit()
        token = self._rng.choice(self._tokens)
        headers = {} if token is None else {"Authorization": token}
        await self._request("POST", "/api/apply", headers, body=edit, expected={400, 401, 403})

    async def _cross_site(self) -> None:
        """Apply a sound edit with a sound token, as another site would."""
        headers = await self._sound()
        name, value = self._rng.choice(
            (
                ("Origin", "http://evil.example"),
                ("Origin", "null"),
                ("Origin", "http://127.0.0.1"),
                ("Sec-Fetch-Site", "cross-site"),
                ("Sec-Fetch-Site", "same-site"),
                ("Host", "evil.example"),
                ("Host", "127.0.0.1.evil.example"),
                ("Content-Type", "text/plain"),
                ("Content-Type", "multipart/form-data; boundary=application/json"),
            )
        )
        headers[name] = value
        await self._request("POST", "/api/apply", headers, body=await self._edit(), expected={403})
        method = self._rng.choice(("GET", "PUT", "DELETE", "PATCH"))
        await self._request(method, "/api/apply", await self._sound(), expected={404, 405})

    async def _hostile(self) -> None:
        """Apply edits that are unsound, with a token that permits all of them."""
        rng, edit = self._rng, await self._edit()
        text: str = edit["text"]
        unsound: list[Any] = [
            {**edit, "revision": str(rng.choice((0, 1, 1 << 62)))},
            {**edit, "revision": rng.choice((-1, "-1", "", None, "1e3", "0x7"))},
            {**edit, "name": rng.choice(("other/journal", "attack/", "../attack", *_SCRIPTS[:2]))},
            {**edit, "text": text + "delete: true\n"},
            {**edit, "text": text + "revision: -1\n"},
            {**edit, "text": "a: &a [x,x,x,x]\n" + "b: [" + "*a," * 2000 + "]\n"},
            {**edit, "text": "[" * rng.randrange(1, 5000)},
            {**edit, "text": rng.choice(_SCRIPTS[:2]) + text},
            {**edit, "text": text.replace("content-type", rng.choice(_SCRIPTS[:5]))},
            {**edit, "text": "x" * rng.randrange(MAX_TEXT, 4 * MAX_TEXT + 1)},
            {**edit, "text": "x" * (1 << 20)},
            {**edit, "dryRun": False},
            [edit],
            None,
        ]
        path = rng.choice(("/api/apply", "/api/review", "/api/heads", "/api/lags", "/api/unassign"))
        expected = {400, 404, 409, 413} | ({200} if path == "/api/review" else set())
        for body in rng.sample(unsound, 5):
            await self._request("POST", path, await self._sound(), body=body, expected=expected)

    async def _garbage(self) -> None:
        """Send bytes that are no JSON, or no request."""
        rng = self._rng
        headers = {**await self._sound(), "Content-Type": "application/json"}
        data = rng.randbytes(rng.randrange(2000))
        await self._request("POST", "/api/apply", headers, data=data, expected={400})
        reader, writer = await self._connected()
        try:
            with contextlib.suppress(ConnectionError):
                writer.write(
                    rng.choice(
                        (
                            data,
                            b"POST /api/apply HTTP/1.1\r\nHost: localhost\r\n" + data,
                            b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000,
                            _SMUGGLED,
                        )
                    )
                )
                await writer.drain()
                writer.write_eof()
                answer = await reader.read(1 << 20)
                require(not answer.startswith(b"HTTP/1.1 2"), "garbage has an answer")
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _scripts(self) -> None:
        """Ask for names that are scripts, and follow content that is."""
        rng = self._rng
        script = rng.choice(_SCRIPTS)
        named = quote(script, errors="surrogatepass")
        for path in (
            f"/api/journal?name={named}",
            f"/api/journals?selector={named}&text={named}&folder={named}/",
            f"/api/spec?name={named}",
            f"/api/tail?name={named}",
            f"/api/tail?name={_JOURNAL}&form=messages&uuid={named}..",
            f"/api/tail?name={_JOURNAL}&begin={named}&time={named}",
            f"/api/summary?folder={named}",
            f"/{named}",
        ):
            await self._request("GET", path, await self._sound())
        content = script.encode(errors="surrogatepass") + rng.randbytes(rng.randrange(200)) + b"\n"
        await self._client.append(_JOURNAL, content)
        form = rng.choice(("text", "messages"))
        path = f"/api/tail?name={_JOURNAL}&form={form}"
        async with self._page.get(path, headers=await self._sound()) as response:
            require(response.status == 200, f"a tail is refused: {response.status}")
            await self._follow(response, content)

    async def _follow(self, response: aiohttp.ClientResponse, content: bytes) -> None:
        """Require that each event is one line of JSON, up to the end of the content."""
        head = (await self._client.append(_JOURNAL, b"\n")).commit.end
        while True:
            lines = [await response.content.readline() for _ in range(3)]
            require(lines[2] == b"\n", f"an event is broken: {lines!r} by {content!r}")
            require(lines[1].startswith(b"data: {"), f"an event is broken: {lines!r}")
            json.loads(lines[1][6:])
            if int(lines[0].removeprefix(b"id: ")) >= head:
                return

    async def _request(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        *,
        body: Any = None,
        data: bytes | None = None,
        expected: set[int] | frozenset[int] = _STATUSES,
    ) -> Any:
        if data is None and method == "POST":
            data = json.dumps(body).encode()
            headers = {"Content-Type": "application/json", **headers}
        content = None if data is None else io.BytesIO(data)
        async with self._page.request(method, path, headers=headers, data=content) as response:
            text = await response.text()
            require(response.status in expected, f"{method} {path}: {response.status} {text:.300}")
            lacking = [name for name in HEADERS if response.headers.get(name) != HEADERS[name]]
            require(not lacking, f"{method} {path} lacks {lacking}")
            is_json = response.content_type == "application/json"
            require(is_json or path == "/", f"{method} {path} is {response.content_type}")
            require("Set-Cookie" not in response.headers, "a header is that of an attacker")
            return json.loads(text)
