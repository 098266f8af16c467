"""`gazette-aio journals apply` and `list`."""

from __future__ import annotations

import datetime as dt
import time

import pytest

import gazette_aio.protocol as pb

SPACE = """\
name: demo/
replication: 1
labels:
  - name: content-type
    value: application/x-ndjson
fragment:
  length: 1048576
  compression_codec: GZIP
  refresh_interval: 1m0s
children:
  - name: demo/one
  - name: demo/two
    labels:
      - name: color
        value: blue
"""


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    return path


async def test_apply_prints_the_revision_and_applies(broker_cli, gazette_client, space):
    done = await broker_cli("journals", "apply", str(space))

    listing = await gazette_client.list()
    assert (done.code, done.err) == (0, "")
    assert done.text == f"revision {listing.journals[0].mod_revision}: 2 upserted\n"
    assert [item.spec.name for item in listing.journals] == ["demo/one", "demo/two"]


async def test_apply_reads_stdin_and_prints_json(broker_cli, gazette_client):
    done = await broker_cli("journals", "apply", "--json", stdin=SPACE.encode())

    listing = await gazette_client.list()
    assert done.json == {
        "revision": listing.journals[0].mod_revision,
        "upserts": ["demo/one", "demo/two"],
        "deletes": [],
        "dry_run": False,
    }


def test_a_dry_run_prints_the_request_without_a_broker(inline, space):
    # There's no broker at this address.
    address = "--broker.address=http://127.0.0.1:1"
    done = inline("journals", "apply", "--dry-run", "-o", "proto", address, "--specs", str(space))

    assert done.code == 0
    assert done.text.startswith('changes: <\n  upsert: <\n    name: "demo/one"\n')
    assert "refresh_interval: <\n        seconds: 60\n      >\n" in done.text


async def test_a_dry_run_shows_the_differences(broker_cli, gazette_client, space):
    created = await broker_cli("journals", "apply", "--dry-run", str(space))
    assert created.text.splitlines()[:2] == [
        "+ demo/one",
        "    + fragment.compression_codec: GZIP",
    ]
    assert not (await gazette_client.list()).journals

    await broker_cli("journals", "apply", str(space))
    listed = await broker_cli("journals", "list", "-o", "yaml")
    changed = listed.text.replace("blue", "red").replace("length: 1048576", "length: 2097152")
    updated = await broker_cli("journals", "apply", "--dry-run", stdin=changed.encode())
    again = await broker_cli("journals", "apply", "--dry-run", str(space))
    space.write_text(SPACE.replace("blue", "red"))
    stale = await broker_cli("journals", "apply", "--dry-run", str(space))

    assert updated.text.splitlines() == [
        "~ demo/one",
        "    fragment.length: 1048576 -> 2097152",
        "~ demo/two",
        "    fragment.length: 1048576 -> 2097152",
        "    labels.color: blue -> red",
    ]
    assert (updated.code, again.code, stale.code) == (0, 0, 1)
    assert again.text.splitlines() == ["= demo/one", "= demo/two"]
    assert "! exists already, at revision" in stale.text
    assert "would be refused: demo/two: exists already, at revision" in stale.err
    assert "`revision: -1`" in stale.err


async def test_a_file_without_revisions_is_applied_again(broker_cli, gazette_client, space):
    await broker_cli("journals", "apply", str(space))
    before = await gazette_client.list()

    again = await broker_cli("journals", "apply", str(space))
    space.write_text(SPACE.replace("blue", "red") + "  - name: demo/three\n")
    refused = await broker_cli("journals", "apply", str(space))

    assert (again.code, again.out) == (0, b"")
    assert again.err == "gazette-aio: nothing was changed\n"
    assert refused.code == 1
    assert "nothing was applied: demo/two: exists already, at revision" in refused.err
    assert (await gazette_client.list()).journals == before.journals
    space.write_text(SPACE.replace("blue", "red\n    revision: -1"))
    forced = await broker_cli("journals", "apply", str(space))
    assert (forced.code, forced.err) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("replication: 1", "replication: many", 2, ["replication"]),
        ("compression_codec: GZIP", "compression_codec: ZIP", 8, ["fragment", "compression_codec"]),
        ("  - name: demo/one", "  - name: other/one", 11, ["demo/", "other/one"]),
        ("replication: 1", "replicas: 1", 2, ["replicas"]),
        ("replication: 1", "replication: 1\nreplication: 2", 3, ["replication"]),
        ("replication: 1", "replication: [1", None, []),
    ],
)
def test_invalid_yaml_names_file_line_and_field(inline, space, old, new, line, words):
    space.write_text(SPACE.replace(old, new))

    done = inline("journals", "apply", "--broker.address=http://127.0.0.1:1", str(space))

    assert (done.code, done.out) == (2, b"")
    assert done.err.count("\n") == 1, done.err
    assert f"{space}:{line or ''}" in done.err
    for word in words:
        assert word in done.err


def test_invalid_spec_is_found_before_anything_is_sent(inline, space):
    space.write_text(SPACE.replace("length: 1048576", "length: 3"))

    done = inline("journals", "apply", "--broker.address=http://127.0.0.1:1", str(space))

    assert done.code == 2
    assert f"{space}: Changes[0].Upsert.Fragment: invalid Length (3; " in done.err


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "  length",
            "  stores: [/tmp/foo]\n  length",
            "(/tmp/foo); demo/one: write a URL, such as",
        ),
        (
            "name: demo/two",
            "name: demo/two\n    delete: true",
            "-1); demo/two: the key is `revision`",
        ),
    ],
)
def test_an_invalid_spec_is_named_with_a_remedy(inline, space, old, new, words):
    space.write_text(SPACE.replace(old, new))

    done = inline("journals", "apply", "--broker.address=http://127.0.0.1:1", str(space))

    assert done.code == 2
    assert words in done.err


async def test_revision_conflict_fails(broker_cli, space):
    space.write_text(SPACE.replace("- name: demo/one", "- name: demo/one\n    revision: 12345"))

    done = await broker_cli("journals", "apply", str(space))

    assert done.code == 1
    assert "demo/one: revision 12345 is expected, but there's none; take each" in done.err
    assert "(ETCD_TRANSACTION_FAILED)" in done.err
    assert done.err.count("\n") == 1


async def test_specs_that_exist_as_they_are_are_not_sent(broker_cli, gazette_client, space):
    await broker_cli("journals", "apply", str(space))
    before = await gazette_client.list()
    listed = await broker_cli("journals", "list", "-o", "yaml")
    same = await broker_cli("journals", "apply", stdin=listed.out)
    as_json = await broker_cli("journals", "apply", "--json", stdin=listed.out)
    changed = await broker_cli("journals", "apply", stdin=listed.out.replace(b"blue", b"red"))

    assert (same.code, same.out, same.err) == (0, b"", "gazette-aio: nothing was changed\n")
    assert as_json.json == {"upserts": [], "deletes": [], "dry_run": False}
    revisions = [journal.mod_revision for journal in before.journals]
    assert changed.text == f"revision {revisions[0] + 1}: 1 upserted\n"
    after = [journal.mod_revision for journal in (await gazette_client.list()).journals]
    assert after == [revisions[0], revisions[0] + 1]


@pytest.mark.gazette_broker(auth_keys="c2VjcmV0")
async def test_a_token_that_permits_only_to_apply_applies_all(broker_cli, gazette_client, space):
    auth = pb.KeyedAuth("c2VjcmV0")
    token = auth.sign(pb.Claims(pb.Capability.APPLY), dt.timedelta(hours=1), time.time())
    done = await broker_cli("journals", "apply", str(space), env={"BROKER_AUTH_TOKEN": token})

    assert done.text.endswith(": 2 upserted\n"), done.err


async def test_delete_by_yaml(broker_cli, gazette_client, space):
    await broker_cli("journals", "apply", str(space))
    listed = await broker_cli("journals", "list", "-o", "yaml", "--selector", "color=blue")

    deleted = await broker_cli("journals", "apply", stdin=b"delete: true\n" + listed.out)

    assert deleted.text.endswith(": 1 deleted\n"), deleted.err
    assert [item.spec.name for item in (await gazette_client.list()).journals] == ["demo/one"]


async def test_list_table_and_selector(broker_cli, gazette_broker, space):
    await broker_cli("journals", "apply", str(space))

    done = await broker_cli("journals", "list", "--selector", "color in (blue, red)")

    header, row = done.text.splitlines()
    assert header.split() == [
        "NAME", "CONTENT", "TYPE", "REVISION", "RF", "PRIMARY", "STORES",
    ]  # fmt: skip
    process = gazette_broker.process_id
    assert row.split() == [
        "demo/two", "application/x-ndjson", row.split()[2], "1",
        f"{process.zone}/{process.suffix}", "-",
    ]  # fmt: skip


async def test_list_json_has_all_there_is(broker_cli, space):
    await broker_cli("journals", "apply", str(space))

    done = await broker_cli("journals", "list", "--json")

    listed = done.json["journals"]
    assert [item["spec"]["name"] for item in listed] == ["demo/one", "demo/two"]
    assert all(int(item["mod_revision"]) > 0 and item["route"] for item in listed)
    assert listed[0]["spec"]["fragment"]["refresh_interval"] == "60s"
    assert listed[0]["spec"]["suspend"] is None


async def test_durations_of_zero_are_absent_in_protobuf_text(broker_cli, gazette_client, space):
    await broker_cli("journals", "apply", str(space))
    listing = await gazette_client.list()
    change = pb.ApplyRequest.Change(expect_mod_revision=listing.journals[0].mod_revision)
    change.upsert.CopyFrom(listing.journals[0].spec)
    change.upsert.fragment.flush_interval.SetInParent()
    await gazette_client.apply(pb.ApplyRequest(changes=[change]))

    done = await broker_cli("journals", "list", "-o", "proto")

    assert "      refresh_interval: <\n        seconds: 60\n      >\n" in done.text
    assert "flush_interval" not in done.text


def test_bad_selector_is_a_usage_error(inline):
    done = inline("journals", "list", "--selector", "a in (b")

    assert done.code == 2
    assert "selector 'a in (b'" in done.err


@pytest.mark.gazette_broker(auth_keys="c2VjcmV0")
async def test_auth_keys_sign_requests(broker_cli, space):
    refused = await broker_cli("journals", "list")
    allowed = await broker_cli("journals", "list", env={"BROKER_AUTH_KEYS": "c2VjcmV0"})

    assert refused.code == 1
    assert "UNAUTHENTICATED" in refused.err
    assert refused.err.count("\n") == 1
    assert allowed.code == 0, allowed.err


def test_a_bad_token_is_not_printed(inline):
    done = inline("journals", "list", "--broker.auth-keys", "not base64!")

    assert done.code == 2
    assert "not base64!" not in done.err


def test_a_broker_which_is_down_fails_within_the_timeout(inline, unused_port):
    address = f"http://127.0.0.1:{unused_port}"

    done = inline("journals", "list", "--timeout=0.5", f"--broker.address={address}")

    assert done.code == 1
    assert done.err.startswith(f"gazette-aio: no broker answers at {address} (tried for 0.5 s)")
    assert done.err.count("\n") == 1


async def test_a_broker_which_comes_up_in_time_is_used(cli, unused_port, tmp_path):
    import asyncio

    from gazette_aio.broker import EmbeddedBroker

    address = f"http://127.0.0.1:{unused_port}"
    command = asyncio.create_task(
        cli("--log-level=info", "journals", "list", "--timeout=30", f"--broker.address={address}")
    )
    async with EmbeddedBroker(tmp_path / "data", port=unused_port, fsync="off"):
        done = await command

    assert done.code == 0, done.err


@pytest.mark.parametrize("address", ["ftp://somewhere", "http://", "no url"])
def test_a_bad_address_is_a_usage_error(inline, address):
    done = inline("journals", "list", f"--broker.address={address}")

    assert done.code == 2
    assert done.err.count("\n") == 1
