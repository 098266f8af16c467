"""The pages in a browser: what they show, how they're reached, and what they never execute."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import gazette_aio.protocol as pb
from gazette_aio.client import connect, get_journal
from gazette_aio.console import Console
from gazette_aio.message import ACK_TXN, CONTINUE_TXN, OUTSIDE_TXN, ProducerID, build_uuid
from gazette_aio.testing import create_journals, journal_spec
from tests.console.browser import PROGRAM, Tab, opened
from tests.console.serving import KEYS, bearer

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium")

_HOSTILE = "<img src=x onerror=document.title='executed'>"
_LINES = {"content-type": "application/x-ndjson"}
_ONE, _TWO = ProducerID(b"\x01one.."), ProducerID(b"\x01two..")
_CLOCK = (122192928000000000 + 17_000_000_000_000_000) << 4


@asynccontextmanager
async def page(
    broker: Any, directory: Path, address: str = "", *, refusal: int = 0, **options: Any
) -> AsyncIterator[Tab]:
    """Open the page of journals in a browser.

    It complains of nothing, but for requests that were refused with the status that a test expects:
    the page asks again at any time.
    """
    console = Console(lambda auth: connect(broker.endpoint, auth=auth), **options)
    await console.start()
    try:
        async with opened(f"{console.url}{address}", directory / "profile") as tab:
            yield tab
            await tab.run("1")
            expected = f"responded with a status of {refusal} "
            assert [each for each in tab.complaints if expected not in each] == []
    finally:
        await console.stop(1.0)


async def press(tab: Tab, key: str) -> None:
    """Press a key, as a person does."""
    code = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39}
    code |= {"ArrowDown": 40, "End": 35, "Home": 36, "Tab": 9}
    text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
    pressed = {"key": key, "windowsVirtualKeyCode": code.get(key, ord(key[0]))}
    await tab.call("Input.dispatchKeyEvent", type="keyDown", text=text, **pressed)
    await tab.call("Input.dispatchKeyEvent", type="keyUp", **pressed)


async def text_of(tab: Tab, part: str) -> str:
    text: str = await tab.run(f"document.getElementById('{part}').textContent")
    return text


async def says(tab: Tab, part: str, text: str) -> None:
    """Wait until a part of the page contains a text."""
    await tab.until(f"document.getElementById('{part}')?.textContent.includes({json.dumps(text)})")


async def shows_a_journal(tab: Tab) -> None:
    """Wait until the details of a journal have been opened, after which its tabs can be used."""
    await tab.until("document.getElementById('detail').checkVisibility()")
    await says(tab, "facts", "Write head")


async def click(tab: Tab, part: str) -> None:
    await tab.run(f"document.getElementById('{part}').click()")


async def go(tab: Tab, address: str) -> None:
    await tab.run(f"location.hash = {json.dumps(address)}")


def line(producer: ProducerID, clock: int, flags: int, text: str = "") -> bytes:
    uuid = build_uuid(producer, _CLOCK + 16 * clock, flags)
    return json.dumps({"_meta": {"uuid": str(uuid)}, "text": text}).encode() + b"\n"


async def test_folders_and_keys(gazette_broker, gazette_client, tmp_path):
    names = [f"orders/region-{number % 7}/part-{number:03}" for number in range(300)]
    names += ["audit/log", "orders/dead-letters"]
    for begin in range(0, len(names), 100):
        specs = [journal_spec(name, stores=["file:///"]) for name in names[begin : begin + 100]]
        await create_journals(gazette_client, *specs)
    async with page(gazette_broker, tmp_path) as tab:
        await says(tab, "status", "302 of 302 journals")
        assert await tab.run(
            "[...document.querySelectorAll('#list td:first-child a')].map((a) => a.textContent)"
        ) == ["audit/log", "orders/"]
        await says(tab, "list", "301 journals")
        # By keys alone: into a folder, to its end, and back to where it began.
        await tab.run("document.querySelector('#list a').focus()")
        await press(tab, "ArrowDown")
        await press(tab, "Enter")
        await says(tab, "path", "orders")
        await says(tab, "status", "301 of 302 journals")
        await tab.until("document.activeElement.dataset.key === 'orders/dead-letters'")
        await press(tab, "End")
        await press(tab, "Enter")
        await says(tab, "path", "region-6")
        await says(tab, "status", "42 of 302 journals")
        await tab.until("document.activeElement.dataset.key === 'orders/region-6/part-006'")
        await press(tab, "End")
        await tab.until("document.activeElement.textContent.includes('part-293')")
        await press(tab, "Enter")
        await tab.until("document.activeElement.id === 'detail'")
        assert await tab.run("document.title") == "orders/region-6/part-293 · Gazette"
        await press(tab, "Escape")
        await tab.until("document.getElementById('detail').hidden")
        await tab.until("document.activeElement.dataset.key?.endsWith('part-293')")
        await press(tab, "ArrowLeft")
        await says(tab, "status", "301 of 302 journals")
        await press(tab, "/")
        assert await tab.run("document.activeElement.id") == "text"
        # A text is looked for in all folders below.
        await tab.type("text", "PART-003")
        await says(tab, "status", "1 of 302 journals")
        await says(tab, "list", "region-3/part-003")
        await tab.type("text", "")
        await says(tab, "status", "301 of 302 journals")
        await tab.photograph("journals")


async def test_rows_in_sight(gazette_broker, gazette_client, tmp_path):
    names = [f"parts/{number:04}" for number in range(2000)]
    for begin in range(0, len(names), 100):
        await create_journals(gazette_client, *map(journal_spec, names[begin : begin + 100]))
    async with page(gazette_broker, tmp_path, "#parts/") as tab:
        await says(tab, "status", "2,000 of 2,000 journals")
        await says(tab, "list", "0000")
        # Few of the rows are there, and those at the end come when they're scrolled to.
        assert await tab.run("document.querySelectorAll('#list tbody tr').length") < 70
        await tab.run("document.getElementById('scroll').scrollTop = 1e7")
        await says(tab, "list", "1999")
        assert await tab.run("document.querySelectorAll('#list tbody tr').length") < 70
        assert await tab.run("document.getElementById('list').ariaRowCount") == "2001"
        assert (
            await tab.run("[...document.querySelectorAll('#list tr')].at(-2).ariaRowIndex")
            == "2001"
        )


async def test_messages(gazette_broker, gazette_client, tmp_path):
    spec = journal_spec("orders/part-003", labels=_LINES, stores=["file:///"])
    await create_journals(gazette_client, spec)
    await gazette_client.append(spec.name, line(_ONE, 1, OUTSIDE_TXN, "the first"))
    async with page(gazette_broker, tmp_path, f"#{spec.name}") as tab:
        await says(tab, "facts", "application/x-ndjson")
        await says(tab, "stores", "not stored yet")
        await says(tab, "labels", "content-type")
        await tab.photograph("overview")
        await click(tab, "tab-messages")
        await click(tab, "follow")
        await says(tab, "feed", "the first")
        content = (
            line(_ONE, 2, CONTINUE_TXN, f"{_HOSTILE}\n\ndata: {{}}\n\n")
            + line(_TWO, 2, CONTINUE_TXN, "another")
            + b"garbage\n{}\n"
            + line(_ONE, 1, OUTSIDE_TXN, "the first")
        )
        await gazette_client.append(spec.name, content)
        await says(tab, "counts", "2 pending")
        await says(tab, "counts", "1 unreadable")
        assert _HOSTILE in await text_of(tab, "feed")
        end = line(_ONE, 2, ACK_TXN) + line(_TWO, 1, ACK_TXN) + line(_TWO, 3, CONTINUE_TXN, "more")
        await gazette_client.append(spec.name, end)
        await tab.until("document.querySelectorAll('#feed li').length === 9")
        states = await tab.run(
            "[...document.querySelectorAll('#feed li')].map((each) => each.dataset.state)"
        )
        assert states == [
            *("committed", "committed", "rolled-back", "unreadable", "plain", "duplicate"),
            *("acknowledgement", "acknowledgement", "pending"),
        ]
        # Words, and not only colours, tell them apart.
        assert "✕ rolled back" in await text_of(tab, "feed")
        await tab.photograph("messages")
        await click(tab, "follow")
        assert await text_of(tab, "follow") == "Follow"
        # The same content as text.
        await tab.run(
            "{ const form = document.getElementById('form'); form.value = 'text';"
            " form.dispatchEvent(new Event('change')); }"
        )
        await click(tab, "follow")
        await says(tab, "tail", "more")
        assert await tab.run("document.images.length") == 1  # That of the head of the page.
        assert await tab.run("document.title") == "orders/part-003 · Gazette"


_SEEN = "[...document.querySelectorAll('#feed li')].filter((row) => row.checkVisibility())"


async def test_the_history_of_messages(gazette_broker, gazette_client, tmp_path):
    spec = journal_spec("orders/part-003", labels=_LINES)
    await create_journals(gazette_client, spec)
    # The transaction of the first message ends far behind it.
    content = line(_TWO, 1, CONTINUE_TXN, "begun")
    for number in range(300):
        content += line(_ONE, number + 1, CONTINUE_TXN, f"message {number:03} " + "x" * 200)
        content += line(_ONE, number + 1, ACK_TXN)
    content += line(_TWO, 1, ACK_TXN)
    await gazette_client.append(spec.name, content)
    async with page(gazette_broker, tmp_path, f"#{spec.name}") as tab:
        await says(tab, "facts", "application/x-ndjson")
        await click(tab, "tab-messages")
        # The newest are there at once, and acknowledgements aren't in sight.
        await says(tab, "feed", "message 299")
        await says(tab, "place", f"of {len(content):,}")
        assert not await tab.run(f"{_SEEN}.some((row) => row.dataset.state !== 'committed')")
        await click(tab, "acks")
        assert await tab.run(f"{_SEEN}.some((row) => row.dataset.state === 'acknowledgement')")
        await click(tab, "acks")
        shown = await tab.run(f"{_SEEN}.at(-1).querySelector('summary').textContent")
        assert shown == '{"text": "message 299 ' + "x" * 200 + '"}'
        # Page back to the beginning, whose state is told by what follows.
        while "message 000" not in await text_of(tab, "feed"):
            before = await tab.run("document.querySelectorAll('#feed li').length")
            await click(tab, "earlier")
            await tab.until(f"document.querySelectorAll('#feed li').length > {before}")
        await tab.until("document.getElementById('place').textContent.startsWith('0 to ')")
        await tab.until("document.querySelector('#feed li').dataset.state === 'committed'")
        await says(tab, "counts", "301 committed")
        begins = await tab.run(
            "[...document.querySelectorAll('#feed .number')].map((one) => one.textContent)"
        )
        offsets = [int(begin.replace(",", "")) for begin in begins]
        assert (offsets, len(offsets)) == (sorted(set(offsets)), 602)
        # Look for a text in what is loaded.
        await tab.type("find", "MESSAGE 017")
        assert await tab.run(f"{_SEEN}.length") == 1
        assert await text_of(tab, "found") == "1 of 602"
        await tab.run("document.getElementById('find').focus()")
        await press(tab, "Escape")
        await tab.type("find", "")
        # Go to an offset, and on from there.
        await tab.type("goto", f"{offsets[21]:,}")
        await tab.run("document.getElementById('position').requestSubmit()")
        await says(tab, "place", f"{offsets[21]:,} to ")
        assert "message 010" in await tab.run(f"{_SEEN}[0].textContent")
        count = await tab.run("document.querySelectorAll('#feed li').length")
        await click(tab, "later")
        await tab.until(f"document.querySelectorAll('#feed li').length > {count}")
        assert await tab.run("document.querySelector('#feed li').dataset.state") == "committed"
        # Go to a time. All messages are of one second.
        time = await tab.run("document.querySelector('#feed time').textContent")
        assert time.endswith("Z")
        await tab.type("goto", time)
        await tab.run("document.getElementById('position').requestSubmit()")
        await tab.until("document.getElementById('place').textContent.startsWith('0 to ')")
        await tab.type("goto", "yesterday")
        await tab.run("document.getElementById('position').requestSubmit()")
        await says(tab, "problem", "Expected an offset")
        # It stays while the page asks for the list and its heads again, until the next command.
        await tab.asks_again("/api/heads")
        assert await tab.run("document.getElementById('problem').checkVisibility()")
        await tab.type("goto", "0")
        await tab.run("document.getElementById('position').requestSubmit()")
        await tab.until("document.getElementById('problem').hidden")


async def test_a_message_unfolds(gazette_broker, gazette_client, tmp_path):
    spec = journal_spec("orders/part-003", labels=_LINES)
    await create_journals(gazette_client, spec)
    uuid = build_uuid(_ONE, _CLOCK, OUTSIDE_TXN)
    meta = f'"_meta":{{"uuid":"{uuid}","key":1}}'
    text = f'{{{meta},"big":9007199254740993,"empty":[],"list":[1,{{"a":"{_HOSTILE}"}}]}}'
    cut = json.dumps({"_meta": {"uuid": str(uuid)}, "a": ["x" * 20_000]})
    await gazette_client.append(spec.name, f"{text}\n{cut}\n".encode())
    async with page(gazette_broker, tmp_path, f"#{spec.name}") as tab:
        await says(tab, "facts", "Write head")
        await click(tab, "tab-messages")
        await says(tab, "feed", "9007199254740993")
        shown = await tab.run("document.querySelector('#feed summary').textContent")
        # As it's written, but for the UUID.
        assert shown.startswith('{"_meta": {"key": 1}, "big": 9007199254740993, "empty": [], ')
        await tab.run("document.querySelector('#feed summary').click()")
        await tab.until("document.querySelectorAll('.tree details').length === 4")
        tree = await tab.run("document.querySelector('.tree').innerText")
        assert f'"uuid": "{uuid}",' in tree
        assert _HOSTILE in tree
        await tab.run("document.querySelectorAll('.tree summary')[2].click()")
        assert _HOSTILE not in await tab.run("document.querySelector('.tree').innerText")
        assert "]} …" in await tab.run("document.querySelectorAll('#feed li')[1].textContent")
        await tab.call("Browser.grantPermissions", permissions=["clipboardReadWrite"])
        copy = "document.querySelector('#feed .copy')"
        await tab.until(f"{copy}.textContent === 'Copied'", after=f"{copy}.click()")
        assert await tab.run("navigator.clipboard.readText()") == text
        assert await tab.run("document.images.length") == 1
        await tab.photograph("tree")


async def test_details_take_the_place_of_the_list_on_narrow_screens(
    gazette_broker, gazette_client, tmp_path
):
    await create_journals(gazette_client, journal_spec("orders/part-003", labels=_LINES))
    async with page(gazette_broker, tmp_path) as tab:
        metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
        await tab.call("Emulation.setDeviceMetricsOverride", **metrics)
        await tab.until("document.documentElement.clientWidth === 390")
        await says(tab, "list", "part-003")
        await tab.run("document.querySelector('#list a').click()")
        await shows_a_journal(tab)
        top = "document.getElementById('facts').getBoundingClientRect().top"
        assert await tab.run(f"{top} > 0 && {top} < 400")
        assert await tab.run("document.documentElement.scrollWidth") == 390
        await click(tab, "close")
        await tab.until("document.getElementById('journals').checkVisibility()")


async def test_journals_of_bytes_have_no_messages(gazette_broker, gazette_client, tmp_path):
    await create_journals(gazette_client, journal_spec("a/bytes"))
    await gazette_client.append("a/bytes", f"{_HOSTILE}\n\nlast".encode())
    async with page(gazette_broker, tmp_path, "#a/bytes") as tab:
        await says(tab, "facts", "Content typenone")
        await click(tab, "tab-messages")
        assert await tab.run("document.getElementById('form').value") == "text"
        await click(tab, "follow")
        await tab.until("document.getElementById('tail').textContent.endsWith('last')")
        await gazette_client.append("a/bytes", b", and more")
        await tab.until("document.getElementById('tail').textContent.endsWith('and more')")
        assert _HOSTILE in await text_of(tab, "tail")


async def replace(tab: Tab, field: str, old: str, new: str) -> None:
    """Replace a part of the text in a field."""
    value = await tab.run(f"document.getElementById('{field}').value")
    assert old in value
    await tab.type(field, value.replace(old, new))


async def test_edits(gazette_broker, gazette_client, tmp_path):
    await create_journals(gazette_client, journal_spec("orders/part-003", labels=_LINES))
    async with page(gazette_broker, tmp_path, "#orders/part-003", refusal=400) as tab:
        await says(tab, "facts", "application/x-ndjson")
        await click(tab, "tab-spec")
        await tab.until("document.getElementById('yaml').value.includes('replication: 1')")
        await replace(tab, "yaml", "length: 16777216", "length: 33554432")
        # Nothing is applied before its differences were seen.
        assert await tab.run("document.getElementById('apply').disabled")
        await click(tab, "review")
        await says(tab, "verdict", "1 field differs")
        assert "~ fragment.length1677721633554432" in await text_of(tab, "differences")
        await tab.photograph("spec")
        # Another text has to be reviewed again.
        await replace(tab, "yaml", "length: 33554432", "length: 67108864")
        assert await tab.run("document.getElementById('apply').disabled")
        await click(tab, "review")
        await says(tab, "verdict", "1 field differs")
        await click(tab, "apply")
        await says(tab, "verdict", "Applied at revision")
        journal = await get_journal(gazette_client, "orders/part-003")
        assert journal.spec.fragment.length == 67108864
        # What somebody else changed meanwhile isn't overwritten.
        await replace(tab, "yaml", "replication: 1", "replication: 2")
        change = pb.ApplyRequest.Change(expect_mod_revision=-1, upsert=journal.spec)
        change.upsert.max_append_rate = 9
        await gazette_client.apply([change])
        await click(tab, "review")
        await says(tab, "verdict", "This would be refused")
        assert await tab.run("document.getElementById('apply').disabled")
        # What isn't valid is refused with its place.
        await tab.type("yaml", f"name: orders/part-003\ncolour: {_HOSTILE}\n")
        await click(tab, "review")
        await says(tab, "verdict", "spec:2")
        await click(tab, "revert")
        await tab.until("document.getElementById('yaml').value.includes('max_append_rate: 9')")


async def test_new_journals(gazette_broker, gazette_client, tmp_path):
    await create_journals(
        gazette_client, *map(journal_spec, ("orders/part-001", "orders/part-002"))
    )
    async with page(gazette_broker, tmp_path, "#orders/") as tab:
        await says(tab, "status", "2 of 2 journals")
        await click(tab, "create")
        await tab.until("document.activeElement.id === 'new-name'")
        await tab.type("new-name", "orders/part-003")
        await tab.until(
            "document.getElementById('yaml').value.startsWith('name: orders/part-003\\n')"
        )
        await click(tab, "review")
        await says(tab, "verdict", "would be created")
        await click(tab, "apply")
        await says(tab, "detail-name", "orders/part-003")
        await says(tab, "status", "3 of 3 journals")
        created = await get_journal(gazette_client, "orders/part-003")
        assert created.spec.labels.labels[0].value == "application/x-ndjson"


@pytest.mark.gazette_broker(auth_keys=KEYS)
async def test_a_token_to_read_edits_nothing(gazette_broker, gazette_client, tmp_path):
    await create_journals(gazette_client, journal_spec("orders/part-003"))
    token = (await bearer(pb.Capability.LIST | pb.Capability.READ)).partition(" ")[2]
    async with page(gazette_broker, tmp_path, "#orders/part-003", refusal=401) as tab:
        await says(tab, "problem", "Enter a token of the brokers")
        await tab.run(f"document.getElementById('token').value = '{token}'")
        await tab.run("document.getElementById('access').requestSubmit()")
        await shows_a_journal(tab)
        assert await tab.run("document.getElementById('token').value") == ""
        await click(tab, "tab-spec")
        await tab.until("document.getElementById('yaml').value.includes('replication: 1')")
        await replace(tab, "yaml", "length: 16777216", "length: 33554432")
        await click(tab, "review")
        await says(tab, "verdict", "1 field differs")
        await click(tab, "apply")
        await says(tab, "verdict", "APPLY")
        journal = await get_journal(gazette_client, "orders/part-003")
        assert journal.spec.fragment.length == 16777216
        await click(tab, "forget")
        await tab.until("document.getElementById('problem').checkVisibility()")
        assert "Enter a token of the brokers" in await text_of(tab, "problem")


async def test_texts_of_brokers_are_no_markup(gazette_broker, gazette_client, tmp_path):
    await create_journals(gazette_client, journal_spec("a/journal"))
    async with page(gazette_broker, tmp_path, refusal=400) as tab:
        await says(tab, "status", "1 of 1 journals")
        await tab.type("selector", _HOSTILE)
        await says(tab, "problem", "<img")
        assert await tab.run("document.images.length") == 1
        await tab.type("selector", "")
        await tab.until("document.getElementById('problem').hidden")
        # An address is text, too.
        await go(tab, f"#{_HOSTILE}")
        await says(tab, "detail-name", "<img")
        await says(tab, "problem", "not a valid token")
        assert await tab.run("document.images.length") == 1


async def test_screen_readers(gazette_broker, gazette_client, tmp_path):
    await create_journals(gazette_client, journal_spec("a/journal", labels=_LINES))
    async with page(gazette_broker, tmp_path, "#a/journal") as tab:
        await says(tab, "facts", "Write head")
        nodes: list[Any] = []
        for part in ("overview", "messages", "spec"):
            await click(tab, f"tab-{part}")
            tree = await tab.call("Accessibility.getFullAXTree")
            nodes += [node for node in tree["nodes"] if not node["ignored"]]
        named = {(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes}
        roles = {role for role, _ in named}
        assert {"banner", "main", "navigation", "search", "table", "tab", "tabpanel"} <= roles
        assert {"log", "status", "columnheader"} <= roles
        assert ("tab", "Messages") in named
        assert ("log", "Messages") in named
        # Whatever can be used has a name.
        used = {"button", "textbox", "searchbox", "link", "combobox", "tab", "region", "tabpanel"}
        assert {role for role, name in named if role in used and not name} == set()
        # Arrows move between the tabs, of which one takes the focus.
        await tab.run("document.getElementById('tab-spec').focus()")
        await press(tab, "ArrowRight")
        assert await tab.run("document.activeElement.id") == "tab-overview"
        assert (
            await tab.run(
                "[...document.querySelectorAll('[role=tab]')].filter((tab) => tab.tabIndex === 0).length"
            )
            == 1
        )
        assert await tab.run("document.getElementById('overview').hidden") is False


def test_both_themes_have_enough_contrast():
    text = Path("gazette_aio/console/page/console.css").read_text("utf-8")
    colors = {
        name.strip("- "): value.partition("light-dark(")[2].rstrip(");").split(", ")
        for name, _, value in (row.partition(": ") for row in text.splitlines())
        if "light-dark(" in value
    }
    for theme in (0, 1):
        for ground in ("ground", "raised", "chosen"):
            for color in ("text", "quiet", "accent", "good", "warn", "bad"):
                ratio = _contrast(colors[color][theme], colors[ground][theme])
                assert ratio >= 4.5, (theme, ground, color, ratio)


def _contrast(one: str, other: str) -> float:
    """Return the ratio of two colours, as WCAG defines it."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(color: str) -> float:
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
