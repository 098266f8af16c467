"""`gazette-aio attach-uuids`, `print-config`, `completion`, `doctor` and `bench`."""

from __future__ import annotations

import datetime as dt
import json
import os
import socket
import ssl
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import click
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

import gazette_aio.protocol as pb
from gazette_aio import EmbeddedBroker, __version__
from gazette_aio.cli.app import cli
from gazette_aio.cli.tools import diagnosis
from gazette_aio.cli.tools.attach_uuids import lines_of
from gazette_aio.cli.tools.print_config import sections_of
from gazette_aio.cli.tools.probes import examine_endpoints
from gazette_aio.client import connect
from gazette_aio.consumer import Application, MemoryStore
from gazette_aio.message import OUTSIDE_TXN, get_clock, get_flags, json_adapter, parse_uuid
from gazette_aio.message.core import FORM
from gazette_aio.protocol import FrameTooLargeError
from gazette_aio.protocol import consumer as pc
from gazette_aio.protocol.go.ini import ini_line
from gazette_aio.settings import key_of
from gazette_aio.testing import consumer_harness, create_journals, journal_spec
from gazette_aio.testing.stub_broker import StubBroker
from tests import extent
from tests.broker.journal.faulty_files import FaultyFiles
from tests.cli.conftest import spawn
from tests.connect_proxy import connect_proxy
from tests.waiting import eventually


def test_attach_uuids(inline: Any, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"header\na,b\r\n")
    two.write_bytes(b"header\n\xff last")
    done = inline("attach-uuids", "--skip-header", str(one), str(two))

    lines = done.out.splitlines()
    assert done.code == 0, done.err
    assert [line[36:] for line in lines] == [b",a,b", b",\xff last"]
    first, second = (parse_uuid(line[:36]) for line in lines)
    assert get_flags(first) == OUTSIDE_TXN
    assert get_clock(first) < get_clock(second)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{.Line}}\n", b"some\n"),
        ("<{{ .Line }}|{{.Line}}>", b"<some|some>"),
        ('{"line":{{\t.Line\t}}}', b'{"line":some}'),
    ],
)
def test_templates(inline: Any, template: str, expected: bytes) -> None:
    assert inline("attach-uuids", "--template", template, stdin=b"some\n").out == expected


def test_a_template_that_is_not_known(inline: Any) -> None:
    refused = inline("attach-uuids", "--template", "{{.Line}}{{if .UUID}}", stdin=b"x\n")

    assert (refused.code, refused.out) == (2, b"")
    assert "unsupported '{{if .UUID}}'" in refused.err


def test_attaching_refuses(inline: Any, tmp_path: Path) -> None:
    bad = inline("attach-uuids", "--template", "{{.Nope", stdin=b"x\n")
    missing = inline("attach-uuids", str(tmp_path / "missing"))
    too_long = inline("attach-uuids", "--max-length=4", stdin=b"12345\n")

    assert (bad.code, missing.code, too_long.code) == (2, 1, 1)
    assert "line is longer than 4 bytes" in too_long.err


@pytest.mark.parametrize("size", [1, 3, 100])
def test_lines_do_not_depend_on_chunks(size: int) -> None:
    content = b"one\r\n\ntwo\nthree"
    chunks = [content[begin : begin + size] for begin in range(0, len(content), size)]

    lines = [line for lines in lines_of(chunks, 6) for line in lines]
    assert lines == [b"one", b"", b"two", b"three"]
    with pytest.raises(FrameTooLargeError):
        list(lines_of([b"1234567"], 6))


def test_print_config_can_be_read_again(
    inline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    env = {"BROKER_ADDRESS": "http://here:1", "BROKER_AUTH_KEYS": "c2VjcmV0"}
    (tmp_path / "gazctl.ini").write_text("[journals.list]\nFormat = yaml\nLabels = a\nLabels = b\n")
    first = inline("print-config", env=env)

    sections = first.text.split("\n[")
    broker = next(section for section in sections if section.startswith("journals.Broker]"))
    listing = next(section for section in sections if section.startswith("journals.list]"))
    assert "\nAddress = http://here:1\n" in broker
    assert "\n; CertFile =\n" in broker
    assert "c2VjcmV0" not in first.text
    assert "\nFormat = yaml\n" in listing
    assert "\nLabels = a\nLabels = b\n" in listing
    assert "\n; Address = http://localhost:8080\n" in first.text, "of the consumer"
    for name in ("attach-uuids", "journals", "journals.Logging", "shards.Consumer"):
        assert f"[{name}]" in first.text

    (tmp_path / "gazctl.ini").write_text(first.text)
    assert inline("print-config", env=env).text == first.text


TEXTS = st.text() | st.sampled_from(["", '"', '""', "# a", "; a", "[a]", "a = b", " a\t", "\\n"])


def values_of(option: click.Option, file: Path) -> st.SearchStrategy[str]:
    """Return texts that an option takes as its value."""
    match option.type:
        case click.Choice():
            return st.sampled_from(option.type.choices)
        case click.IntRange() | click.types.IntParamType() | click.FloatRange():
            return st.integers(1, 1 << 20).map(str)
        case click.types.BoolParamType():
            return st.sampled_from(["true", "false"] if option.secondary_opts else ["true"])
        case click.Path(exists=True):
            return st.just(str(file.parent if option.type.dir_okay else file))
        case click.Path():  # Of no directory, which a file can't be.
            return TEXTS.map(lambda text: "missing/" + text.replace("\0", ""))
    return TEXTS


def test_each_printed_setting_can_be_read_again(
    inline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    path = tmp_path / "gazctl.ini"
    path.touch()

    @extent.examples(5)
    @given(st.data())
    def check(data: st.DataObject) -> None:
        lines: list[str] = []
        with cli.make_context("gazette-aio", ["print-config"]) as context:
            for section, options in sections_of(context, cli):
                lines.append(f"[{section}]")
                for option, name in options:
                    if name not in {"auth-keys", "auth-token"}:
                        value = data.draw(values_of(option, path), f"{section}.{name}")
                        lines.append(ini_line(key_of(name), value))
        path.write_text("\n".join(lines), "utf-8")
        printed = inline("print-config").text
        assert [line for line in printed.splitlines() if line and line[0] != ";"] == lines

    check()


def test_defaults_are_printed_as_settings(inline: Any) -> None:
    line = r'; Template = "{{.UUID}},{{.Line}}\n"'

    assert line in inline("print-config").text.splitlines()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion(inline: Any, shell: str) -> None:
    done = inline("completion", shell)

    assert "_GAZETTE_AIO_COMPLETE" in done.text


def test_completion_of_words(inline: Any) -> None:
    env = {
        "_GAZETTE_AIO_COMPLETE": "bash_complete",
        "COMP_WORDS": "gazette-aio journals l",
        "COMP_CWORD": "2",
    }
    assert inline(env=env).text == "plain,list\n"


async def finished(*args: str, env: dict[str, str]) -> tuple[int, str]:
    process = await spawn(*args, env=env)
    out, err = await process.communicate()
    return process.returncode, out.decode() or err.decode()


async def test_version_names_the_form_of_the_core(inline: Any) -> None:
    plain = await finished("--version", env={"GAZETTE_AIO_CORE": "plain"})

    assert plain == (0, f"gazette-aio, version {__version__}, plain core\n")
    assert inline("--version").text == f"gazette-aio, version {__version__}, {FORM} core\n"


async def test_an_unknown_form_of_the_core_is_refused() -> None:
    wrong = await finished("doctor", env={"GAZETTE_AIO_CORE": "wrong"})

    assert wrong == (2, "gazette-aio: GAZETTE_AIO_CORE is 'wrong' (expected native or plain)\n")


async def test_doctor_says_how_to_get_the_compiled_core(unused_port: int) -> None:
    env = {"BROKER_ADDRESS": f"http://127.0.0.1:{unused_port}", "GAZETTE_AIO_CORE": "plain"}
    _, text = await finished("doctor", "--json", env=env)

    (chosen,) = (each for each in json.loads(text) if each["check"] == "core")
    lacking = diagnosis.core_finding("plain", is_chosen=False)
    assert (chosen["result"], chosen["remedy"]) == ("warning", "unset $GAZETTE_AIO_CORE")
    assert "install Rust 1.85 or newer" in lacking.remedy
    assert diagnosis.core_finding("native", is_chosen=False).result == "ok"


def test_doctor_says_that_the_compiled_core_is_older_than_its_sources(tmp_path: Path) -> None:
    package, sources = tmp_path / "gazette_aio", tmp_path / "native/src/python"
    module, source = package / "message/core/_native.abi3.so", sources / "journal.rs"
    for path in (module, source):
        path.parent.mkdir(parents=True)
        path.touch()
    os.utime(module, (5, 5))
    os.utime(source, (5, 5))
    assert diagnosis.newer_source(package) is None
    os.utime(source, (6, 6))
    newer = diagnosis.newer_source(package)
    assert newer == source
    stale = diagnosis.core_finding("native", is_chosen=False, newer=newer)
    assert (stale.result, stale.remedy) == ("warning", "build it again by `make core`")
    assert stale.detail == f"native, but older than {source}"
    # Neither a wheel nor a plain tree is stale.
    source.unlink()
    assert diagnosis.newer_source(package) is None
    module.unlink()
    source.touch()
    assert diagnosis.newer_source(package) is None


def token(capability: pb.Capability, *, age: dt.timedelta = dt.timedelta(0)) -> str:
    """Return the option of a token that was signed some time ago, for a day."""
    signed_at = time.time() - age.total_seconds()
    claims = pb.Claims(capability)
    return pb.KeyedAuth("c2VjcmV0").sign(claims, dt.timedelta(days=1), signed_at)


@pytest.mark.gazette_broker(auth_keys="c2VjcmV0")
async def test_doctor_of_tokens(broker_cli: Any) -> None:
    old = token(pb.Capability.LIST, age=dt.timedelta(days=2))
    remedies = {
        "--broker.auth-token=": "set $BROKER_AUTH_KEYS_FILE, $BROKER_AUTH_KEYS or $BROKER_AUTH_TOK",
        "--broker.auth-keys=b3RoZXI=": "the server's keys aren't $BROKER_AUTH_KEYS_FILE or $BROKER",
        "--broker.auth-keys=,": "keys are base64, by commas",
        f"--broker.auth-token={old}": "$BROKER_AUTH_TOKEN has expired: ask for a new token",
        "--broker.auth-token=x": "$BROKER_AUTH_TOKEN isn't a token of the server's keys",
        f"--broker.auth-token={token(pb.Capability.READ)}": "the token doesn't allow to list",
    }
    found = [await broker_cli("doctor", "--json", option) for option in remedies]

    assert [done.code for done in found] == [1] * len(remedies)
    for done, remedy in zip(found, remedies.values(), strict=True):
        assert done.json[-1]["remedy"].startswith(remedy)
        assert "auth=" not in done.json[-1]["detail"], "options of Python"


@pytest.mark.gazette_broker(auth_keys="c2VjcmV0")
async def test_remedies_are_options_of_the_command(broker_cli: Any) -> None:
    refused = await broker_cli("journals", "read", "test/journal")

    assert refused.code == 1
    remedy = "missing or empty Authorization token: give --broker.auth-keys-file or --broker.auth-t"
    assert remedy in refused.err


async def test_an_authority_is_named_by_an_option(cli: Any, tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "pem")
    own = {"server_cert_file": tmp_path / "pem", "server_cert_key_file": tmp_path / "pem"}
    async with EmbeddedBroker(fsync="off", **own) as broker:
        address, seconds, err = f"--broker.address={broker.endpoint}", 0.5, ""
        while "name its authority by --broker.trusted-ca-file" not in err:
            seconds *= 2  # A busy machine may not know the reason within it.
            refused = await cli("journals", "list", address, f"--timeout={seconds:g}")
            assert refused.code == 1
            err = refused.err
        found = await cli("doctor", address, "--json")

    assert found.json[-1]["remedy"].startswith("name the authority by $BROKER_TRUSTED_CA_FILE")


async def test_a_port_of_http_is_not_that_of_grpc(cli: Any) -> None:
    async with EmbeddedBroker(fsync="off") as broker:
        env = {f"{peer}_ADDRESS": broker.http_endpoint for peer in ("BROKER", "CONSUMER")}
        seconds, failed = 0.5, list[Any]()
        told = "the server speaks HTTP/1, not gRPC: give the port of gRPC"
        while not failed or not all(told in each["detail"] for each in failed):
            seconds *= 2  # A busy machine may not know the reason within it.
            done = await cli("doctor", "--json", f"--timeout={seconds:g}", env=env)
            failed = [each for each in done.json if each["result"] == "failed"]

    assert [each["check"] for each in failed] == ["broker", "consumer"]
    for each in failed:
        assert each["remedy"].startswith(f"name the port of gRPC by ${each['check'].upper()}_ADDR")


@pytest.mark.gazette_broker(auth_keys="c2VjcmV0")
async def test_doctor_of_a_sound_connection(broker_cli: Any) -> None:
    done = await broker_cli("doctor", "--broker.auth-keys=c2VjcmV0")

    assert done.code == 0, done.err
    assert "answers requests" in done.text


async def test_doctor_looks_at_advertised_addresses(cli: Any, unused_port: int) -> None:
    there = f"http://127.0.0.1:{unused_port}"
    async with StubBroker() as broker:
        members = [pb.ProcessSpec.ID(zone="a", suffix=name) for name in ("here", "there", "noname")]
        # A name that can't exist.
        endpoints = [broker.endpoint, there, "http://nowhere.invalid:8080"]
        journal = pb.ListResponse.Journal(
            spec=journal_spec("a/journal"),
            mod_revision=5,
            route=pb.Route(members=members, endpoints=endpoints, primary=0),
        )
        listing = pb.ListResponse(header=broker.header(), journals=[journal])
        broker.list_handler = lambda _request: listing
        env = {"BROKER_ADDRESS": broker.endpoint}
        done = await cli("doctor", "--json", env=env)
        proxied = await cli("doctor", "--broker.cache.size=0", env=env)
        del journal.route.members[1:], journal.route.endpoints[1:]
        listing.journals[0].CopyFrom(journal)
        fine = await cli("doctor", "--json", env=env)

    there_found, noname = done.json[-2:]
    assert (done.code, done.err) == (1, "gazette-aio: failed: broker routes\n")
    assert there_found == {
        "check": "broker routes",
        "result": "failed",
        "detail": f"a/there at {there}: Connection refused",
        "remedy": "",
    }
    assert noname["detail"].startswith("a/noname at http://nowhere.invalid:8080: ")
    assert noname["remedy"].startswith("start the server with a --broker.host that resolves here")
    assert f"all requests go to {broker.endpoint} instead" in noname["remedy"]
    # Without routes, the addresses don't matter.
    package = Path(diagnosis.__file__).parents[2]
    of_core = int(FORM == "plain" or diagnosis.newer_source(package) is not None)
    assert (proxied.code, proxied.text.count("warning")) == (0, 2 + of_core)
    assert (fine.code, fine.json[-1]["result"]) == (0, "ok")


async def test_doctor_of_a_loopback_address(unused_port: int) -> None:
    members = {"http://localhost:1": "a/one", "unix:///run/broker.sock": "a/two"}
    # Nobody answers at the address, so it isn't known to be this machine.
    elsewhere = f"http://127.0.0.1:{unused_port}"
    found = await examine_endpoints(members, elsewhere, None, peer="broker", are_used=True)

    assert ["only the server's own machine" in each.detail for each in found] == [True, True]


async def test_doctor_names_the_proxy_in_effect(cli: Any) -> None:
    async with StubBroker() as broker, connect_proxy() as proxy:
        port = broker.endpoint.rpartition(":")[2]
        listed = pb.ListResponse.Journal(
            spec=journal_spec("a/journal"),
            mod_revision=5,
            route=pb.Route(
                members=[pb.ProcessSpec.ID(zone="a", suffix="b")],
                endpoints=["http://other.invalid:8080"],
            ),
        )
        broker.list_handler = lambda _: pb.ListResponse(header=broker.header(), journals=[listed])
        env = {"BROKER_ADDRESS": f"http://broker.invalid:{port}", "HTTPS_PROXY": proxy.url}
        done = await cli("doctor", "--json", "--broker.cache.size=0", env=env)
        direct = await cli("doctor", "--json", env=env | {"BROKER_ADDRESS": broker.endpoint})

    details = {each["check"]: each["detail"] for each in done.json}
    assert details["broker proxy"] == f"{proxy.url.replace('user:secret@', '')} ($HTTPS_PROXY)"
    assert details["broker"] == "answers requests"
    assert details["broker routes"].endswith("a proxy is in effect: http://other.invalid:8080")
    assert done.code == 0
    assert "secret" not in done.text + done.err
    assert not any("proxy" in each["check"] for each in direct.json)


async def test_doctor_without_a_server(cli: Any, unused_port: int) -> None:
    done = await cli(
        "doctor", f"--broker.address=http://127.0.0.1:{unused_port}", "--json",
        f"--etcd.address=http://127.0.0.1:{unused_port}",
    )  # fmt: skip

    results = {each["check"]: each["result"] for each in done.json}
    assert (results["connection"], results["Etcd"]) == ("failed", "failed")
    assert done.json[-2]["remedy"].startswith("nobody listens on this port")
    assert done.err == "gazette-aio: failed: connection, Etcd\n"
    assert (await cli("doctor", "--broker.address=ftp://x")).code == 1


async def test_doctor_says_what_an_address_of_etcd_is(cli: Any, unused_port: int) -> None:
    address = f"--broker.address=http://127.0.0.1:{unused_port}"
    done = await cli("doctor", address, "--json", env={"ETCD_ADDRESS": "localhost:2379"})

    etcd = done.json[-1]
    assert (etcd["check"], etcd["result"]) == ("Etcd", "failed")
    assert etcd["detail"].endswith("missing host: localhost:2379")
    assert etcd["remedy"] == "expected a URL such as http://localhost:2379"


def test_findings_of_clocks_and_certificates() -> None:
    now = time.time()

    assert diagnosis.clock_finding(formatdate(now), now).result == "ok"
    assert "s ahead of the server" in diagnosis.clock_finding(formatdate(now - 60), now).detail
    assert diagnosis.clock_finding("", now).result == "skipped"
    end = "Jan  1 00:00:00 2030 GMT"
    assert diagnosis.certificate_finding(end, 1_893_456_000.0 - 3600).result == "warning"
    assert diagnosis.certificate_finding(end, 1_800_000_000.0).result == "ok"


class Poisoned(Application[Any, Any]):
    """Fails at each message."""

    def adapter(self, spec: Any) -> Any:
        return json_adapter()

    def new_store(self, shard: Any, recorder: Any) -> Any:
        return MemoryStore(0)

    def consume_message(self, shard: Any, store: Any, envelope: Any, publisher: Any) -> None:
        raise KeyError("quantity")


async def test_doctor_lists_failed_shards(cli: Any) -> None:
    async with consumer_harness(Poisoned()) as harness:
        labels = {"content-type": "application/x-ndjson"}
        await create_journals(
            harness.client, journal_spec("orders", labels=labels, stores=["file:///"])
        )
        member = await harness.start_member()
        spec = pc.ShardSpec(id="shop/shard-one", max_txn_duration={"seconds": 1})
        spec.sources.add(journal="orders")
        await harness.create_shards(spec)
        env = {
            "CONSUMER_ADDRESS": member.endpoint,
            "CONSUMER_AUTH_KEYS": "c2VjcmV0",
            "BROKER_ADDRESS": harness.client.endpoint,
        }
        fine = await cli("doctor", "--json", env=env)
        await harness.client.append("orders", b'{"item": 1}\n')

        def has_failed() -> bool:
            [assignment] = member.session.group.assignments("shop/shard-one")
            return assignment.status.code == pc.ReplicaStatus.FAILED

        await eventually(has_failed)
        done = await cli("doctor", "--json", env=env)
        listed = await cli("shards", "list", env=env)
        as_json = await cli("shards", "list", "--json", env=env)

    found = {each["check"]: each for each in fine.json}
    assert (fine.code, found["shards"]["detail"]) == (0, "none of 1 has failed"), fine.err
    assert found["fragment store"]["detail"] == "file:///"
    assert found["broker version"]["detail"].startswith("v0.100 or newer")
    assert (done.code, done.err) == (1, "gazette-aio: failed: shard shop/shard-one\n")
    [failed] = [each for each in done.json if each["check"] == "shard shop/shard-one"]
    assert failed["detail"] == "orders at offset 0: consume_message(): KeyError: 'quantity'"
    assert failed["remedy"].endswith("`gazette-aio shards unassign -l id=shop/shard-one --failed`")
    assert len(listed.text.splitlines()) == 2
    assert listed.err == f"gazette-aio: shop/shard-one has failed: {failed['detail']}\n"
    assert as_json.err == "", "which has the errors itself"


@pytest.mark.parametrize(
    ("problem", "remedy"),
    [
        ("PUT failed: no space left on device", "the disk is full: free some space"),
        ("PUT failed: permission denied", "check permissions and address of the store"),
    ],
)
async def test_doctor_lists_failing_stores(cli: Any, problem: str, remedy: str) -> None:
    async with StubBroker() as broker:
        spec = journal_spec("a/journal", stores=["s3://bucket/path/?profile=secret"])
        route = pb.Route(primary=-1)
        journal = pb.ListResponse.Journal(spec=spec, mod_revision=5, route=route)
        broker.list_handler = lambda _: pb.ListResponse(header=broker.header(), journals=[journal])
        broker.health_handler = lambda _: pb.FragmentStoreHealthResponse(
            header=broker.header(),
            status=pb.Status.FRAGMENT_STORE_UNHEALTHY,
            store_health_error=problem,
        )
        done = await cli("doctor", "--json", env={"BROKER_ADDRESS": broker.endpoint})

    [failed] = [each for each in done.json if each["check"] == "fragment store"]
    assert (done.code, done.err) == (1, "gazette-aio: failed: fragment store\n")
    assert (failed["result"], failed["detail"]) == ("failed", f"s3://bucket/path/: {problem}")
    assert failed["remedy"].startswith(remedy)
    [version] = [each for each in done.json if each["check"] == "broker version"]
    assert version["detail"].startswith("before v0.100")


async def test_doctor_sees_a_disk_that_was_free_at_the_last_check(cli: Any, tmp_path: Path) -> None:
    files = FaultyFiles()
    async with (
        EmbeddedBroker(tmp_path, fsync="off", files=files) as broker,
        connect(broker.endpoint) as client,
    ):
        await create_journals(client, journal_spec("a/journal", stores=["file:///"]))
        await client.append("a/journal", b"content")
        files.fail("pwrite", "")
        with pytest.raises(pb.TransportError, match="the broker's disk is full"):
            await client.append("a/journal", b"lost")
        full = await cli("doctor", "--json", env={"BROKER_ADDRESS": broker.endpoint})
        files.heal()
        free = await cli("doctor", "--json", env={"BROKER_ADDRESS": broker.endpoint})

    [failed] = [each for each in full.json if each["result"] == "failed"]
    assert failed["detail"].startswith("file:///: health check PUT failed: the broker's disk is fu")
    assert failed["remedy"].startswith("the disk is full: free some space")
    assert free.code == 0, free.err


@pytest.mark.parametrize("code", ["UNIMPLEMENTED", "PERMISSION_DENIED", "UNAUTHENTICATED"])
def test_stores_that_arent_checked_arent_failing(code: str) -> None:
    finding = diagnosis.store_check_failure("s3://a/", pb.TransportError(code, "text"))

    assert finding.result == "skipped"
    timeout = pb.TransportError("DEADLINE_EXCEEDED", "text")
    assert diagnosis.store_check_failure("s3://a/", timeout).result == "failed"


def test_many_failed_shards_are_summed_up() -> None:
    shards = [pc.ListResponse.Shard(spec=pc.ShardSpec(id=f"shard-{n:03}")) for n in range(30)]
    for shard in shards[1:]:
        shard.status.add(code=pc.ReplicaStatus.FAILED, errors=["a\nb"])
    *some, rest = diagnosis.shard_findings(shards)

    assert [each.check for each in some] == [f"shard shard-{n:03}" for n in range(1, 21)]
    assert some[0].detail == "a b"
    assert rest.detail == "29 of 30 have failed"
    assert diagnosis.age_finding([]).result == "skipped"


async def test_a_broker_is_no_consumer(broker_cli: Any, gazette_broker: Any) -> None:
    address = f"--consumer.address={gazette_broker.endpoint}"

    listing = await broker_cli("shards", "list", address)
    pruning = await broker_cli("shards", "prune", "-l", "", address)
    found = await broker_cli("doctor", address, "--json")

    text = f"the server at {gazette_broker.endpoint} isn't a consumer"
    assert (listing.code, listing.out) == (1, b"")
    assert listing.err.startswith(f"gazette-aio: {text}")
    assert listing.err.endswith(": check --consumer.address or $CONSUMER_ADDRESS\n")
    assert (pruning.code, pruning.err) == (1, listing.err)
    assert [(each["check"], each["result"]) for each in found.json][-1] == ("consumer", "failed")
    assert found.json[-1]["detail"].startswith(text)
    assert found.json[-1]["remedy"] == "set $CONSUMER_ADDRESS to that of a consumer"


async def test_bench(broker_cli: Any, gazette_client: Any, journal: str) -> None:
    done = await broker_cli("bench", journal, "--seconds=0.05", "--size=100", "--json")
    table = await broker_cli("bench", journal, "--seconds=0.01")

    assert [each["what"] for each in done.json] == ["appends", "batched appends", "reads"]
    assert done.json[2]["bytes"] == done.json[0]["bytes"] + done.json[1]["bytes"]
    assert table.text.splitlines()[0].split()[0] == "WHAT"
    assert json.dumps(done.json)


def untrusted() -> OSError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    return error


@pytest.mark.parametrize(
    ("stage", "error", "remedy"),
    [
        ("DNS", socket.gaierror(-2, "unknown"), "check the spelling of $BROKER_ADDRESS"),
        ("connection", TimeoutError(), "check firewalls"),
        ("connection", OSError(101, "unreachable"), "check the address and the network"),
        ("TLS", untrusted(), "name the authority by $BROKER_TRUSTED_CA_FILE"),
        ("TLS", ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), "the server doesn't speak TLS"),
        ("TLS", ConnectionResetError(104, "reset"), "the server may want a client certificate"),
    ],
)
def test_findings_of_connections(stage: diagnosis.Stage, error: OSError, remedy: str) -> None:
    found = diagnosis.network_failure("broker", "host:1", stage, error)

    assert (found.check, found.result) == (stage, "failed")
    assert found.detail.startswith("host:1: ")
    assert found.remedy.startswith(remedy)


async def test_doctor_of_a_name_that_doesnt_resolve(cli: Any) -> None:
    done = await cli("doctor", "--json", "--broker.address=http://nowhere.invalid:8080")

    assert (done.code, done.json[-1]["check"]) == (1, "DNS")
