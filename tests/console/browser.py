"""A headless Chromium, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

from tests.waiting import eventually

# Debian's names of the browser, and of its smaller part without windows.
PROGRAM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
_PICTURES = os.environ.get("GAZETTE_TEST_PICTURES")
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
)


class Tab:
    """A page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._documents: set[str] = set()
        self.complaints: list[str] = []
        """Errors and refusals that the page logged."""

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while (message := await self._receive()).get("id") != number:
            pass
        assert "error" not in message, message
        return message["result"]

    async def _receive(self) -> Any:
        message = await self._socket.receive_json()
        if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(message["params"]))
        if message.get("method") == "Page.frameNavigated":
            self._documents.add(message["params"]["frame"]["loaderId"])
        return message

    async def open(self, url: str) -> None:
        """Open a URL. Scripts run in its document from then on, and not in the one before."""
        document = (await self.call("Page.navigate", url=url))["loaderId"]
        while document not in self._documents:
            await self._receive()

    async def run(self, script: str) -> Any:
        """Return the value of an expression of JavaScript, once its promise is kept."""
        answer = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, condition: str, *, after: str = "") -> None:
        """Wait for a condition, which the page looks at time and again.

        Args:
            condition: An expression of JavaScript.
            after: Statement that is executed before. A condition that soon ends is seen only so.
        """
        await self.run(
            f"new Promise((done) => {{ {after}; const look = () =>"
            f" ({condition}) ? done() : setTimeout(look, 20); look(); }})"
        )

    async def asks_again(self, path: str) -> None:
        """Wait until the page has asked the console for a path, and dealt with the answer."""
        count = (
            "performance.getEntriesByType('resource')"
            f".filter((each) => each.name.includes('{path}')).length"
        )
        seen = await self.run(count)
        # The request after the next one.
        await self.until(f"{count} > {seen + 1}")

    async def type(self, field: str, text: str) -> None:
        """Put a text into a field, by its id."""
        await self.run(
            f"{{ const field = document.getElementById({json.dumps(field)});"
            f" field.value = {json.dumps(text)};"
            " field.dispatchEvent(new Event('input', {bubbles: true})); }"
        )

    async def photograph(self, name: str) -> None:
        """Put pictures of the page into a directory, if the environment names it."""
        if _PICTURES is None:
            return
        for width, height in ((390, 844), (1280, 800), (2560, 1300)):
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
            await self.call("Emulation.setDeviceMetricsOverride", **size)
            for theme in ("light", "dark"):
                features = [{"name": "prefers-color-scheme", "value": theme}]
                await self.call("Emulation.setEmulatedMedia", features=features)
                answer = await self.call("Page.captureScreenshot", format="png")
                _write(f"{name}-{width}-{theme}.png", base64.b64decode(answer["data"]))
        await self.call("Emulation.clearDeviceMetricsOverride")


def _write(name: str, picture: bytes) -> None:
    assert _PICTURES is not None
    directory = Path(_PICTURES)
    directory.mkdir(parents=True, exist_ok=True)
    directory.joinpath(name).write_bytes(picture)


@asynccontextmanager
async def opened(url: str, directory: Path) -> AsyncIterator[Tab]:
    """Open a URL in a browser of its own."""
    assert PROGRAM is not None
    process = await asyncio.create_subprocess_exec(
        PROGRAM,
        *_OPTIONS,
        f"--user-data-dir={directory}",
        "--window-size=1280,800",
        "about:blank",
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stderr is not None
    listening: asyncio.Task[bytes] | None = None
    try:
        while b"DevTools listening on " not in (line := await process.stderr.readline()):
            assert line, "the browser ended"
        # A browser that nobody listens to would stop in the end.
        listening = asyncio.create_task(process.stderr.read())
        port = int(line.split(b"127.0.0.1:")[1].split(b"/")[0])
        async with aiohttp.ClientSession() as session:
            addresses: list[str] = []

            async def has_page() -> bool:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                    targets = await response.json()
                pages = [item for item in targets if item["type"] == "page"]
                addresses.extend(item["webSocketDebuggerUrl"] for item in pages)
                return bool(addresses)

            # The browser listens before it has its page.
            await eventually(has_page)
            async with session.ws_connect(addresses[0], max_msg_size=0) as socket:
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await tab.call(f"{domain}.enable")
                # Otherwise other windows decide whether the page has the focus.
                await tab.call("Emulation.setFocusEmulationEnabled", enabled=True)
                await tab.open(url)
                yield tab
    finally:
        # Debian's program is a shell that waits for the browser, which has processes of its own.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if listening is not None:
            await listening
