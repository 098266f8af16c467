"""The page in a browser: what it shows, how it's reached, and what it never executes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gazette_aio.client import connect
from gazette_aio.console import Console
from gazette_aio.testing import create_journals, journal_spec
from tests.console.browser import PROGRAM, opened

_HOSTILE = "<img src=x onerror=document.title='executed'>"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Directory of the pictures of this run."""
    directory = Path(os.environ.get("GAZETTE_TEST_PICTURES") or tmp_path / "pictures")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")
async def test_page(gazette_broker, gazette_client, tmp_path, pictures):
    specs = [journal_spec(f"orders/region-{number % 7}/part-{number:03}") for number in range(300)]
    for begin in range(0, len(specs), 100):
        await create_journals(gazette_client, *specs[begin : begin + 100])
    await gazette_client.append("orders/region-3/part-003", b"an order\n" * 1000)
    console = Console(lambda auth: connect(gazette_broker.endpoint, auth=auth))
    await console.start()
    try:
        async with opened(console.url, tmp_path / "profile") as tab:
            await tab.until(
                "document.getElementById('status')?.textContent === '300 of 300 journals'"
            )
            # Few of the rows are there, and those at the end come when they're scrolled to.
            assert await tab.run("document.querySelectorAll('#list tbody tr').length") < 60
            await tab.run("document.getElementById('scroll').scrollTop = 1e6")
            await tab.until(
                "document.querySelector('#list tbody').textContent.includes('part-293')"
            )
            await tab.type("text", "PART-003")
            await tab.until("document.getElementById('status').textContent === '1 of 300 journals'")
            await tab.run("document.querySelector('#list a').click()")
            await tab.until("document.activeElement.id === 'detail'")
            assert "9,000" in await tab.run("document.getElementById('facts').textContent")
            assert await tab.run("document.title") == "orders/region-3/part-003 · Gazette"
            # Content is text, and so are its ends of events.
            await gazette_client.append(
                "orders/region-3/part-003", f"{_HOSTILE}\n\ndata: {{}}\n\nlast".encode()
            )
            await tab.run("document.getElementById('follow').click()")
            await tab.until("document.getElementById('tail').textContent.endsWith('last')")
            assert _HOSTILE in await tab.run("document.getElementById('tail').textContent")
            await gazette_client.append("orders/region-3/part-003", b", and more")
            await tab.until("document.getElementById('tail').textContent.endsWith('and more')")
            await tab.run("document.getElementById('follow').click()")
            assert await tab.run("document.getElementById('follow').textContent") == "Follow"
            # What a broker says of a text is text.
            await tab.type("selector", _HOSTILE)
            await tab.until("!document.getElementById('problem').hidden")
            assert "<img" in await tab.run("document.getElementById('problem').textContent")
            assert await tab.run("document.images.length") == 0
            tab.complaints.clear()  # The refusal of the selector.
            await tab.type("selector", "")
            await tab.type("text", "")
            await tab.until("document.getElementById('status').textContent.startsWith('300 ')")
            await tab.until("document.getElementById('problem').hidden")
            for theme in ("light", "dark"):
                await tab.theme(theme)
                (pictures / f"console-{theme}.png").write_bytes(await tab.picture())
            assert tab.complaints == []
    finally:
        await console.stop(1.0)
