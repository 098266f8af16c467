"""Settings of a consumer's process."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.consumer.service.options import ConsumerOptions, random_name
from gazette_aio.consumer.service.process import command
from gazette_aio.consumer.service.settings import SETTINGS, ProcessConfig, process_config
from gazette_aio.consumer.shards.restarts import RestartPolicy
from gazette_aio.protocol.go.ini import ini_line
from tests import extent
from tests.consumer.service.applications import Summing

if TYPE_CHECKING:
    from collections.abc import Mapping


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory of a program and its user, who has no settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for setting in SETTINGS:
        monkeypatch.delenv(str(setting.envvar), raising=False)
    return tmp_path


def config(*args: str) -> ProcessConfig:
    program = click.Command("serve", params=list(SETTINGS))
    with program.make_context("serve", list(args)) as context:
        return process_config(context.params)


def printed(*args: str, env: Mapping[str, str | None] | None = None) -> list[str]:
    """Return the settings that aren't defaults, and their sections."""
    result = CliRunner(env=env).invoke(command(Summing()), ["print-config", *args])
    assert result.exit_code == 0, result.output
    return [line for line in result.output.splitlines() if line and line[0] != ";"]


def test_defaults_are_those_of_gazette() -> None:
    parsed = config()
    consumer = parsed.consumer
    assert (consumer.zone, consumer.limit, consumer.max_hot_standbys) == ("local", 32, 3)
    assert (consumer.watch_delay, consumer.lease_ttl, consumer.port) == (0.03, 20, 0)
    assert consumer.max_grpc_recv_size == 4194304
    assert consumer.exit_timeout == math.inf
    assert parsed.etcd.endpoints == ("http://localhost:2379",)
    assert parsed.broker_address == "http://localhost:8080"
    assert parsed.broker["cache_ttl"] == 60
    assert (parsed.log_level, parsed.log_format) == ("warn", "text")
    defaults = ConsumerOptions(id=consumer.id)
    assert consumer == defaults, "flags and options have the same defaults"


def test_a_flag_counts_before_a_variable_and_a_variable_before_the_file(directory: Path) -> None:
    file = "[consumer]\nlimit = 1\nzone = file\n[etcd]\nlease = 5s\n"
    (directory / "gazette.ini").write_text(file)
    env = {"CONSUMER_LIMIT": "2", "ETCD_LEASE_TTL": "7s"}
    lines = printed("--consumer.limit=3", env=env)
    assert {"Limit = 3", "Lease = 7s", "Zone = file"} <= {*lines}


def test_an_empty_text_is_the_default_and_overrides_what_counts_less(directory: Path) -> None:
    (directory / "gazette.ini").write_text("[consumer]\nlimit = 1\nzone = file\nexit-timeout=\n")
    env = {"CONSUMER_LIMIT": "", "CONSUMER_ZERO_LIMIT_ON_EXIT": "", "ETCD_LEASE_TTL": "1s"}
    lines = printed("--consumer.zone=", "--etcd.lease=", "--debug.private=", env=env)
    assert lines == ["[consumer]", "[broker]", "[etcd]", "[log]", "[debug]"]


def test_names_of_flags_and_variables_are_unique() -> None:
    assert len({setting.opts[0] for setting in SETTINGS}) == len(SETTINGS)
    assert len({setting.envvar for setting in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize(
    ("flag", "attribute", "value"),
    [
        ("--consumer.port=unix:///run/one.sock", "socket", Path("/run/one.sock")),
        ("--consumer.port=8080", "port", 8080),
        ("--consumer.exit-timeout=1m", "exit_timeout", 60),
        ("--consumer.stop-timeout=3s", "stop_timeout", 3),
        ("--consumer.release-timeout=1500ms", "release_timeout", 1.5),
        ("--consumer.max-restarts=7", "restarts", RestartPolicy(max_attempts=7)),
        ("--consumer.max-restarts=0", "restarts", None),
        ("--consumer.zero-limit-on-exit", "zero_limit_on_exit", True),
        ("--consumer.zero-limit-on-exit=on", "zero_limit_on_exit", True),
        ("--consumer.zero-limit-on-exit=F", "zero_limit_on_exit", False),
        ("--consumer.recovery-directory=/var/lib/one", "recovery_directory", Path("/var/lib/one")),
        ("--consumer.hints-bytes=1048576", "hints_bytes", 1 << 20),
        ("--consumer.allow-origin=http://a", "allow_origin", ("http://a",)),
        ("--debug.port=8090", "http_port", 8090),
        ("--etcd.prefix=/one/two", "prefix", "/one/two"),
    ],
)
def test_texts_become_options(flag: str, attribute: str, value: object) -> None:
    assert getattr(config(flag).consumer, attribute) == value


def test_brokers_and_etcd() -> None:
    parsed = config(
        "--etcd.address=http://one:2379, http://two:2379",
        "--broker.auth-token=a.b.c",
        "--broker.cache.size=0",
        "--broker.file-root=/files",
    )
    assert parsed.etcd.endpoints == ("http://one:2379", "http://two:2379")
    assert isinstance(parsed.broker["auth"], pb.BearerAuth)
    assert (parsed.broker["cache_size"], parsed.broker["file_root"]) == (0, Path("/files"))


@pytest.mark.parametrize(
    "flag",
    [
        "--consumer.limit=-1",
        "--consumer.limit=many",
        "--consumer.limit=9999999999",
        "--consumer.port=70000",
        "--consumer.watch-delay=30",
        "--consumer.zero-limit-on-exit=perhaps",
        "--etcd.lease=500ms",
        "--debug.port=high",
        "--log.level=loud",
    ],
)
def test_an_invalid_text_is_refused_by_its_name(flag: str) -> None:
    result = CliRunner().invoke(command(Summing()), ["serve", flag])
    assert result.exit_code == 2
    assert flag.partition("=")[0] in result.output


@pytest.mark.parametrize(
    "options",
    [
        {"limit": -1},
        {"lease_ttl": 0},
        {"port": 65536},
        {"exit_timeout": math.nan},
        {"max_hot_standbys": -1},
        {"peer_cert_file": Path("one")},
        {"server_cert_file": Path("one")},
        {"auth_keys": "one", "auth_keys_file": Path("two")},
        {"socket": Path("relative")},
        {"allow_origin": "http://one"},
    ],
    ids=str,
)
def test_invalid_options(options: dict[str, object]) -> None:
    with pytest.raises(pb.ConfigurationError):
        ConsumerOptions(**options)  # type: ignore[arg-type]


def test_the_first_file_counts(directory: Path) -> None:
    user = directory / ".config" / "gazette"
    user.mkdir(parents=True)
    assert "Level = info" not in printed()
    text = '[Consumer]\n; a remark\nMax-Hot-Standbys = 7\n[Logging]\nLevel = "info"\n[Other]\na=b\n'
    (user / "gazette.ini").write_text(text)
    assert {"MaxHotStandbys = 7", "Level = info"} < {*printed()}
    (directory / "gazette.ini").write_text("[consumer]\nlimit = 9\n")
    assert "Level = info" not in printed()


@pytest.mark.parametrize(
    "content", [b"limit = 9\n", b"[consumer\n", b'[log]\nlevel = "a\n', b"\xff"], ids=repr
)
def test_a_damaged_file_is_named(directory: Path, content: bytes) -> None:
    (directory / "gazette.ini").write_bytes(content)
    result = CliRunner().invoke(command(Summing()), ["print-config"])
    assert (result.exit_code, "gazette.ini" in result.output) == (2, True)


def test_printed_settings_are_read_again(directory: Path) -> None:
    texts = st.text(min_size=1) | st.sampled_from(
        ['"', '""', "# a", "; a", "[a]", "a = b", " a\t", "\\n"]
    )
    free = ["ID", "Host", "Bind", "RecoveryDirectory", "Prefix"]

    @extent.examples(8)
    @given(st.fixed_dictionaries({}, optional=dict.fromkeys(free, texts)))
    def check(given: dict[str, str]) -> None:
        lines = [ini_line(name, given[name]) for name in free if name in given and name != "Prefix"]
        prefix = [ini_line("Prefix", given["Prefix"])] if "Prefix" in given else []
        expected = ["[consumer]", *lines, "AllowOrigin = a", "AllowOrigin = b"]
        expected += ["[broker]", "[etcd]", *prefix, "[log]", "[debug]", "Private = true"]
        (directory / "gazette.ini").write_text("\n".join(expected), "utf-8")
        assert printed() == expected

    check()


def test_secrets_are_not_printed_or_shown() -> None:
    secret = "c2VjcmV0"
    names = ("consumer.auth-keys", "broker.auth-keys", "broker.auth-token", "etcd.password")
    flags = [f"--{name}={secret}" for name in names] + ["--etcd.user=user"]
    result = CliRunner().invoke(command(Summing()), ["print-config", *flags])
    assert result.exit_code == 0
    assert secret not in result.output
    assert result.output.count("is set, and isn't printed") == len(names)
    assert secret not in repr(config(*flags))


def test_random_names_are_valid_and_differ() -> None:
    names = {random_name() for _ in range(50)}
    assert len(names) > 40
    for name in names:
        process_id = pb.ProcessSpec.ID(zone="local", suffix=name)
        pb.validate(pb.ProcessSpec(id=process_id, endpoint="http://host:1"))
