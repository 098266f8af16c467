"""Options that commands share, and the file of settings."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from gazette_aio.cli.app import cli
from gazette_aio.cli.shell.groups import moved_behind_command

INI = """\
; A comment.
[journals.Broker]
Address = http://127.0.0.1:1
Size = 7
[journals.list]
Format = "json"
RF = true
NoSuchThing = 1
[shards.Broker]
Address = http://127.0.0.1:2
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "gazctl.ini"
    path.write_text(INI)
    return path


def test_a_file_of_settings_wins_over_the_environment(inline: Any, settings: Path) -> None:
    env = {"BROKER_ADDRESS": "http://127.0.0.1:3"}
    by_file = inline("journals", "list", "--timeout=0.1", env=env)
    by_option = inline(
        "journals", "list", "--timeout=0.1", "--broker.address=http://127.0.0.1:4", env=env
    )

    assert by_file.code == 1
    assert "no broker answers at http://127.0.0.1:1 " in by_file.err
    assert "no broker answers at http://127.0.0.1:4 " in by_option.err


@pytest.mark.usefixtures("settings")
async def test_settings_of_a_command(broker_cli: Any, gazette_broker: Any) -> None:
    done = await broker_cli("journals", "list", f"--broker.address={gazette_broker.endpoint}")

    assert json.loads(done.text)["journals"] == []


@pytest.mark.parametrize(
    ("line", "reason"),
    [("[open", "malformed section"), ("word", "expected KEY"), ('A = "x', "malformed string")],
)
def test_an_invalid_file_is_refused(inline: Any, settings: Path, line: str, reason: str) -> None:
    settings.write_text(f"\n{line}\n")
    done = inline("journals", "list", "--timeout=0.1")

    assert done.code == 2
    assert f"gazctl.ini:2: {reason}" in done.err


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("Format = xml", "Format: 'xml' is not one of"),
        ("RF = perhaps", "RF: 'perhaps' is not a valid boolean"),
        ('Broker.CertFile = "\\x00"', "Broker.CertFile: embedded null byte"),
        ("Timeout = soon", "Timeout: 'soon' is not a valid float"),
        ("Broker.AuthKeysFile = none", "Broker.AuthKeysFile: File 'none' does not exist"),
    ],
)
def test_a_value_that_an_option_can_t_have_is_told_with_its_line(
    inline: Any, settings: Path, line: str, reason: str
) -> None:
    settings.write_text(f"[journals.list]\n{line}\n")
    done = inline("journals", "list")

    assert done.code == 2
    assert f"gazctl.ini:2: {reason}" in done.err


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("list -l a", "list -l a"),
        ("--broker.address=u list -o json", "list --broker.address=u -o json"),
        ("--broker.address u --zone z list", "list --broker.address u --zone z"),
        ("--help", "--help"),
        ("--own x --broker.address", "--own x --broker.address"),
    ],
)
def test_shared_options_stand_before_the_command_too(given: str, expected: str) -> None:
    moved = moved_behind_command(given.split(), {"--own"})

    assert moved == expected.split()


@pytest.mark.parametrize("word", ["True", "1", "t", "yes", "on"])
@pytest.mark.parametrize("key", ["RF", "Primary"])
def test_words_of_flags(inline: Any, settings: Path, key: str, word: str) -> None:
    settings.write_text(f"[journals.list]\n{key} = {word}\n")

    assert f"\n{key} = true\n" in inline("print-config").text


@pytest.mark.parametrize("word", ["False", "0", "f", "no", "off", ""])
def test_words_of_flags_that_are_off(inline: Any, settings: Path, word: str) -> None:
    settings.write_text(f"[journals.list]\nRF = {word}\n")

    assert "\nRF = " not in inline("print-config").text


async def test_options_before_the_command(broker_cli: Any, gazette_broker: Any) -> None:
    done = await broker_cli(
        f"--broker.address={gazette_broker.endpoint}", "journals", "--zone=z", "list",
        env={"BROKER_ADDRESS": "http://127.0.0.1:1"},
    )  # fmt: skip

    assert done.code == 0, done.err


def commands_below(context: click.Context, command: click.Command, path: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands_below(context, below, f"{path} {name}")
    else:
        yield path.strip()


def test_options_of_logs_stand_before_and_after_each_command(inline: Any) -> None:
    with cli.make_context("gazette-aio", ["serve"]) as context:
        commands = list(commands_below(context, cli, ""))
    assert {"serve", "broker check", "completion", "journals read"} <= {*commands}
    for command in commands:
        words = command.split()
        for args in ([*words, "--log.level=warn"], ["--log.level=warn", *words]):
            done = inline(*args, "--help")
            assert (done.code, done.text.startswith("Usage: ")) == (0, True), (args, done.err)


@pytest.mark.parametrize(("form", "begin"), [("json", '{"time": "'), ("color", "20")])
async def test_formats_of_log_records(cli: Any, form: str, begin: str) -> None:
    done = await cli(
        "journals", f"--log.format={form}", "list", "--log.level=debug", "--timeout=0.1",
        "--broker.address=http://127.0.0.1:1",
    )  # fmt: skip

    assert done.err.startswith(begin), done.err
    assert ("\x1b[" in done.err) == (form == "color")


def test_options_of_tls(inline: Any) -> None:
    address = "--broker.address=https://127.0.0.1:1"
    missing = inline("journals", "list", address, "--broker.trusted-ca-file=/no/such")
    half = inline("journals", "list", address, "--broker.cert-file=/no/such")

    assert (half.code, missing.code) == (2, 2)
    assert "must be given together" in half.err
    assert "No such file or directory: '/no/such'" in missing.err


def test_a_file_that_a_setting_names(inline: Any, settings: Path) -> None:
    settings.with_name("keys").write_text("c2VjcmV0")
    settings.write_text("[journals.Broker]\nAuthKeysFile = keys\n")
    done = inline("journals", "list", "--timeout=0.1", "--broker.address=http://127.0.0.1:1")

    assert done.code == 1
    assert "no broker answers" in done.err
