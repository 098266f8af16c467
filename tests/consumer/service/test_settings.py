"""Settings of a consumer's process."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio.consumer.service.options import ConsumerOptions, random_name
from gazette_aio.consumer.service.settings import (
    SETTINGS,
    combine,
    print_config,
    process_config,
    read_file,
)
from gazette_aio.consumer.shards.restarts import RestartPolicy

NONE: dict[str, str | None] = {}


def test_defaults_are_those_of_gazette() -> None:
    config = process_config(combine(NONE, {}, {}))
    consumer = config.consumer
    assert (consumer.zone, consumer.limit, consumer.max_hot_standbys) == ("local", 32, 3)
    assert (consumer.watch_delay, consumer.lease_ttl, consumer.port) == (0.03, 20, 0)
    assert consumer.max_grpc_recv_size == 4194304
    assert consumer.exit_timeout == math.inf
    assert config.etcd.endpoints == ("http://localhost:2379",)
    assert config.broker_address == "http://localhost:8080"
    assert config.broker["cache_ttl"] == 60
    assert (config.log_level, config.log_format) == ("warn", "text")


def test_a_flag_counts_before_a_variable_and_a_variable_before_the_file() -> None:
    file = {"consumer.limit": "1", "consumer.zone": "file", "etcd.lease": "5s"}
    environment = {"CONSUMER_LIMIT": "2", "ETCD_LEASE_TTL": "7s", "CONSUMER_ZONE": ""}
    values = combine({"consumer.limit": "3"}, environment, file)
    consumer = process_config(values).consumer
    assert (consumer.limit, consumer.lease_ttl, consumer.zone) == (3, 7, "file")


def test_names_of_flags_and_variables_are_unique() -> None:
    assert len({setting.flag for setting in SETTINGS}) == len(SETTINGS)
    assert len({setting.environment for setting in SETTINGS}) == len(SETTINGS)


@pytest.mark.parametrize(
    ("flag", "text", "attribute", "value"),
    [
        ("consumer.port", "unix:///run/one.sock", "socket", Path("/run/one.sock")),
        ("consumer.port", "8080", "port", 8080),
        ("consumer.exit-timeout", "1m", "exit_timeout", 60),
        ("consumer.max-restarts", "7", "restarts", RestartPolicy(max_attempts=7)),
        ("consumer.max-restarts", "0", "restarts", None),
        ("consumer.zero-limit-on-exit", "true", "zero_limit_on_exit", True),
        ("consumer.recovery-directory", "/var/lib/one", "recovery_directory", Path("/var/lib/one")),
        ("consumer.hints-bytes", "1048576", "hints_bytes", 1 << 20),
        ("debug.port", "8090", "http_port", 8090),
        ("etcd.prefix", "/one/two", "prefix", "/one/two"),
    ],
)
def test_texts_become_options(flag: str, text: str, attribute: str, value: object) -> None:
    consumer = process_config(combine({flag: text}, {}, {})).consumer
    assert getattr(consumer, attribute) == value


def test_brokers_and_etcd() -> None:
    values = combine(
        {
            "etcd.address": "http://one:2379, http://two:2379",
            "broker.auth-token": "a.b.c",
            "broker.cache.size": "0",
            "broker.file-root": "/files",
        },
        {},
        {},
    )
    config = process_config(values)
    assert config.etcd.endpoints == ("http://one:2379", "http://two:2379")
    assert isinstance(config.broker["auth"], pb.BearerAuth)
    assert (config.broker["cache_size"], config.broker["file_root"]) == (0, Path("/files"))


@pytest.mark.parametrize(
    ("flag", "text"),
    [
        ("consumer.limit", "-1"),
        ("consumer.limit", "many"),
        ("consumer.port", "70000"),
        ("consumer.watch-delay", "30"),
        ("consumer.zero-limit-on-exit", "perhaps"),
        ("etcd.lease", "500ms"),
        ("debug.port", "high"),
        ("log.level", "loud"),
    ],
)
def test_an_invalid_text_is_refused_by_its_name(flag: str, text: str) -> None:
    with pytest.raises(pb.ConfigurationError, match=flag):
        process_config(combine({flag: text}, {}, {}))


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
    ],
    ids=str,
)
def test_invalid_options(options: dict[str, object]) -> None:
    with pytest.raises(pb.ConfigurationError):
        ConsumerOptions(**options)  # type: ignore[arg-type]


def test_the_first_file_counts(tmp_path: Path) -> None:
    first, second = tmp_path / "one.ini", tmp_path / "two.ini"
    assert read_file([first, second]) == {}
    second.write_text('[Consumer]\n; a remark\nMax-Hot-Standbys = 7\n[Logging]\nLevel = "info"\n')
    file = read_file([first, second])
    values = combine(NONE, {}, file)
    assert (values["consumer.max-hot-standbys"], values["log.level"]) == ("7", "info")
    first.write_text("[consumer]\nlimit = 9\n")
    assert combine(NONE, {}, read_file([first, second]))["log.level"] == "warn"


@pytest.mark.parametrize(
    "content", [b"limit = 9\n", b"[consumer\n", b'[log]\nlevel = "a\n', b"\xff"], ids=repr
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "gazette.ini"
    path.write_bytes(content)
    with pytest.raises(pb.ConfigurationError, match=r"gazette\.ini"):
        read_file([path])


def test_printed_settings_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "gazette.ini"
    texts = st.text() | st.sampled_from(
        ["", '"', '""', "# a", "; a", "[a]", "a = b", " a\t", "\\n"]
    )

    @given(st.fixed_dictionaries({each.flag: texts for each in SETTINGS if not each.secret}))
    def check(given: dict[str, str | None]) -> None:
        values = combine(given, {}, {})
        path.write_text(print_config(values), "utf-8")
        assert combine(NONE, {}, read_file([path])) == values

    check()


def test_secrets_are_not_printed_or_shown() -> None:
    secret = "c2VjcmV0"
    flags = {setting.flag: secret for setting in SETTINGS if setting.secret}
    flags["etcd.user"] = "user"
    assert len(flags) > 3
    values = combine(flags, {}, {})
    assert secret not in print_config(values)
    assert secret not in repr(process_config(values))


def test_random_names_are_valid_and_differ() -> None:
    names = {random_name() for _ in range(50)}
    assert len(names) > 40
    for name in names:
        process_id = pb.ProcessSpec.ID(zone="local", suffix=name)
        pb.validate(pb.ProcessSpec(id=process_id, endpoint="http://host:1"))
