"""`gazette-aio serve`, and the command line as a whole."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress

import aiohttp
import pytest
from click.testing import CliRunner

import gazette_aio
from gazette_aio.cli.serve import serve
from gazette_aio.client import connect
from gazette_aio.message.core import FORM
from gazette_aio.testing import create_journals, journal_spec
from tests.cli.conftest import NO_BROKER_VARIABLES, spawn
from tests.waiting import eventually


async def ready_line(process) -> dict[str, object]:
    return json.loads(await process.stdout.readline())


async def ended(process, number=signal.SIGTERM) -> tuple[int, str]:
    process.send_signal(number)
    _, err = await process.communicate()
    return process.returncode, err.decode()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_serve_says_when_it_is_ready_and_keeps_its_directory(tmp_path, number):
    args = ["serve", f"--data-dir={tmp_path / 'data'}", "--port=0", "--http-port=0"]
    args += ["--min-append-rate=0"]
    first = await spawn(*args, "--zone=here", "--id=mine")
    ready = await ready_line(first)
    async with connect(ready["endpoint"]) as client:
        await create_journals(client, journal_spec("test/kept"))
        await client.append("test/kept", b"content")
        process_id = (await client.list()).journals[0].route.members[0]
    code, err = await ended(first, number)

    second = await spawn(*args)
    async with connect((await ready_line(second))["endpoint"]) as client:
        async with client.read("test/kept", end_offset=7) as reader:
            content = b"".join([chunk async for chunk in reader])
    await ended(second)

    assert (code, err) == (0, "")
    assert ready["pid"] == first.pid
    assert ready["endpoint"].startswith("http://127.0.0.1:")
    assert ready["http_endpoint"].startswith("http://127.0.0.1:")
    assert (process_id.zone, process_id.suffix) == ("here", "mine")
    assert content == b"content"


async def test_serve_with_the_console():
    process = await spawn("serve", "--port=0", "--http-port=0", "--console-port=0")
    ready = await ready_line(process)
    async with connect(ready["endpoint"]) as client:
        await create_journals(client, journal_spec("test/shown"))
    async with aiohttp.ClientSession(ready["console"]) as page:
        async with page.get("/api/journals") as response:
            rows = (await response.json())["rows"]
        async with page.get("/api/journals", headers={"Host": "evil.example"}) as response:
            refused = response.status
    code, err = await ended(process)

    assert ready["console"].startswith("http://127.0.0.1:")
    assert [row["name"] for row in rows] == ["test/shown"]
    assert refused == 403
    assert (code, err) == (0, "")


async def test_serve_logs_warnings_unless_another_level_is_chosen(tmp_path):
    logged = []
    for chosen in ((), ("--log.level=error",)):
        (tmp_path / "test/a").mkdir(parents=True, exist_ok=True)
        (tmp_path / "test/a/no-fragment").touch()
        args = ("serve", "--port=0", "--http-port=0", f"--file-root={tmp_path}")
        process = await spawn(*chosen, *args)
        async with connect((await ready_line(process))["endpoint"]) as client:
            await create_journals(client, journal_spec("test/a", stores=["file:///"]))
            await client.list_fragments("test/a")
        logged.append((await ended(process))[1])

    assert "ignored a file which isn't a fragment" in logged[0]
    assert logged[1] == ""


async def test_serve_takes_options_of_the_environment_and_aliases(tmp_path, unused_port):
    env = {
        "BROKER_DATA_DIR": str(tmp_path / "data"),
        "BROKER_PORT": str(unused_port),
        "BROKER_ZONE": "overridden",
    }
    process = await spawn("serve", "--broker.zone=zone", "--http-port=0", env=env)
    ready = await ready_line(process)
    await ended(process)

    assert ready["endpoint"] == f"http://127.0.0.1:{unused_port}"
    assert "zone" in json.dumps(ready["process_id"])
    assert (tmp_path / "data").is_dir()


async def test_ready_file_in_place_of_stdout(tmp_path):
    path = tmp_path / "ready.json"
    path.write_text("")  # A broker which was killed has left it.
    process = await spawn(
        "serve", "--port=0", "--http-port=0", f"--data-dir={tmp_path / 'data'}",
        f"--ready-file={path}",
    )  # fmt: skip

    def is_ready():
        assert process.returncode is None
        with suppress(FileNotFoundError):  # The old file is removed first.
            return path.stat().st_size > 0
        return False

    await eventually(is_ready)
    ready = json.loads(path.read_text())
    async with connect(ready["endpoint"]) as client:
        assert not (await client.list()).journals
    process.send_signal(signal.SIGTERM)
    out, _ = await process.communicate()

    assert (process.returncode, out) == (0, b"")
    assert not path.exists()


async def test_a_failed_start_leaves_no_ready_file(cli, tmp_path):
    path = tmp_path / "ready.json"
    path.write_text("of a broker which was killed")

    done = await cli("serve", "--port=unix:///no/such/directory", f"--ready-file={path}")

    assert done.code == 2
    assert not path.exists()


async def test_clients_are_told_what_is_advertised(tmp_path):
    env = {"BROKER_ADVERTISE": "http://broker.example:80"}
    process = await spawn("serve", "--port=0", "--http-port=0", env=env)
    ready = await ready_line(process)
    await ended(process)

    assert ready["endpoint"] == "http://broker.example:80"


async def test_broker_module_is_the_same_command(tmp_path):
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gazette_aio.broker", "--port=0", "--http-port=0",
        f"--data-dir={tmp_path / 'data'}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=NO_BROKER_VARIABLES,
    )  # fmt: skip
    ready = await ready_line(process)
    assert (await ended(process)) == (0, "")
    assert ready["pid"] == process.pid


async def test_port_in_use(cli, gazette_broker, tmp_path):
    port = gazette_broker.endpoint.rpartition(":")[2]

    done = await cli("serve", f"--port={port}", "--http-port=0", f"--data-dir={tmp_path / 'other'}")

    assert (done.code, done.out) == (1, b"")
    assert f"127.0.0.1:{port}" in done.err
    assert done.err.count("\n") == 1


async def test_directory_in_use(cli, gazette_broker, tmp_path):
    directory = tmp_path / "gazette-broker"

    done = await cli("serve", "--port=0", "--http-port=0", f"--data-dir={directory}")

    assert (done.code, done.out) == (2, b"")
    assert str(directory) in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["serve", "--port=eighty"], "--port"),
        (["serve", "--port=70000"], "70000"),
        (["serve", "--fsync=sometimes"], "sometimes"),
        (["serve", "--zone=not a token"], "zone: not a valid token (not a token)"),
        (["serve", "--id=me"], "suffix (id): invalid length (2; expected 4 <= length <= 128)"),
        (["serve", "--watch-delay=soon"], "soon"),
        (["serve", "--console-port=0", "--advertise=http://a:1"], "gazette-aio console"),
        (["serve", "--watch-delay=-1s"], "watch_delay"),
        (["serve", "--advertise=broker"], "advertise: not absolute: broker"),
        (["serve", "--file-root=/no/such/directory"], "/no/such/directory"),
        (["journals", "read"], "JOURNAL"),
        (["journals", "list", "--no-such-option"], "--no-such-option"),
        (["no-such-command"], "no-such-command"),
    ],
)
def test_wrong_usage_exits_2(inline, args, words):
    done = inline(*args)

    assert (done.code, done.out) == (2, b"")
    assert words in done.err


@pytest.mark.parametrize("variable", ["BROKER_PORT", "BROKER_HTTP_PORT", "BROKER_MAX_REPLICATION"])
def test_a_bad_variable_is_named(inline, variable):
    done = inline("serve", env={variable: "many"})

    assert done.code == 2
    assert "many" in done.err


@pytest.mark.parametrize("level", ["warn", "WARNING", "fatal", "trace"])
def test_levels_of_other_programs_are_known(inline, level):
    done = inline("serve", "--advertise=broker", env={"LOG_LEVEL": level})

    assert "advertise" in done.err


def test_every_option_of_a_broker_has_a_variable():
    for option in serve.params:
        if option.name not in {"ready_file", "log_level", "log_format"}:
            assert option.envvar == f"BROKER_{option.name.upper()}"


def test_help_shows_names_variables_and_defaults_but_no_aliases():
    text = CliRunner().invoke(serve, ["--help"], terminal_width=200).output

    for words in (
        "--port", "BROKER_PORT", "8080", "--http-port", "8081", "--host", "--data-dir",
        "--file-root", "BROKER_FILE_ROOT", "--zone", "BROKER_ZONE", "--id", "BROKER_ID",
        "--auth-keys", "BROKER_AUTH_KEYS", "--max-replication", "--ready-file", "--file-only",
        "--server-cert-file", "--server-cert-key-file", "--server-ca-file", "--grpc-extras",
    ):  # fmt: skip
        assert words in text
    assert "--broker." not in text


@pytest.mark.parametrize("group", [[], ["journals"], ["shards"], ["broker"]])
def test_help_of_groups_has_whole_sentences(inline, group):
    done = inline(*group, "--help")
    assert done.code == 0
    listed = done.text.partition("Commands:")[2].partition("\n\n")[0]
    assert listed
    assert "..." not in listed


def test_no_command_shows_help_and_version_is_ours(inline):
    nothing, version = inline(), inline("--version")

    assert nothing.code == 2
    assert "Usage: gazette-aio" in nothing.text + nothing.err
    assert "Exit codes:" in nothing.text + nothing.err
    assert (version.code, version.text) == (
        0,
        f"gazette-aio, version {gazette_aio.__version__}, {FORM} core\n",
    )
