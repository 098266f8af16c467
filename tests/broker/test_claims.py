"""Holders of tokens who want more than their tokens permit, through the public doors."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from google.protobuf.duration_pb2 import Duration

import gazette_aio.protocol as pb
from gazette_aio.broker import EmbeddedBroker
from gazette_aio.client.rpc.errors import FirstStatus
from tests.broker.caller import Caller, calling, eventually, journal_spec

KEY = "c2VjcmV0LWtleQ=="
ALL = pb.Capability.ALL
REWRITES = "file:///?find=mine/x&replace=secret/jrnl"


class Doors(Caller):
    """Calls of area broker with the token of one client."""

    def __init__(self, channel: grpc.aio.Channel, token: str) -> None:
        super().__init__(channel)
        self.token = token
        self.replicate_call: Any = channel.stream_stream(
            "/protocol.Journal/Replicate",
            request_serializer=pb.ReplicateRequest.SerializeToString,
            response_deserializer=pb.ReplicateResponse.FromString,
        )
        metadata = (("authorization", f"Bearer {token}"),)

        def authorized(call: Any) -> Any:
            return functools.partial(call, metadata=metadata)

        for name in ("list", "apply", "read", "append", "replicate", "fragments", "health"):
            setattr(self, f"{name}_call", authorized(getattr(self, f"{name}_call")))

    async def refused(self, *changes: pb.ApplyRequest.Change) -> str:
        """Apply changes which aren't authorized, and return why."""
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await self.apply_call(pb.ApplyRequest(changes=changes))
        assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
        text = raised.value.details()
        assert text is not None
        return text

    async def health(self, store: str, **fields: Any) -> str:
        request = pb.FragmentStoreHealthRequest(fragment_store=store, **fields)
        problem: str = (await self.health_call(request)).store_health_error
        return problem


@asynccontextmanager
async def holding(
    broker: EmbeddedBroker, selector: str = "", capability: pb.Capability = ALL
) -> AsyncGenerator[Doors]:
    """Yield the doors of area broker to the holder of area token."""
    claims = pb.Claims(capability, pb.parse_label_selector(selector))
    token = pb.KeyedAuth(KEY).sign(claims, timedelta(hours=1), time.time())
    target = broker.endpoint.removeprefix("http://")
    async with grpc.aio.insecure_channel(target) as channel:
        yield Doors(channel, token)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[EmbeddedBroker]:
    """A broker with keys, and with directories for stores."""
    for name in ("area/secret", "secret", "mine"):
        (tmp_path / "root" / name).mkdir(parents=True)
    async with new_broker(tmp_path) as broker:
        yield broker


def new_broker(path: Path, **options: Any) -> EmbeddedBroker:
    options = {"fsync": "off", "persist_delay": 0.0, "http_port": None, **options}
    options = {"file_root": path / "root", "auth_keys": KEY, "store_wait": 0.05, **options}
    return EmbeddedBroker(path / "data", **options)


def spec(name: str, *stores: str, tier: str = "", **fields: Any) -> pb.JournalSpec:
    labels = pb.label_set("tier", tier) if tier else None
    return journal_spec(name, labels=labels, stores=stores, **fields)


def upsert(spec: pb.JournalSpec) -> pb.ApplyRequest.Change:
    return pb.ApplyRequest.Change(upsert=spec, expect_mod_revision=-1)


def delete(name: str) -> pb.ApplyRequest.Change:
    return pb.ApplyRequest.Change(delete=name, expect_mod_revision=-1)


# Apply


async def test_a_token_relabels_no_journal_which_it_does_not_match(broker: EmbeddedBroker) -> None:
    async with holding(broker) as owner, holding(broker, "tier=x") as thief:
        await owner.create(spec("secret/jrnl", tier="y"))
        await owner.commit(b"secret", "secret/jrnl")
        text = await thief.refused(upsert(spec("secret/jrnl", tier="x")))
        assert text == "not authorized to secret/jrnl"
        assert await thief.read("secret/jrnl") == b""
        # Neither may it give away its own.
        await thief.create(spec("mine", tier="x"))
        await thief.refused(upsert(spec("mine", tier="y")))
        await thief.refused(upsert(spec("newer", tier="x")), upsert(spec("secret/jrnl", tier="x")))
        assert {j.spec.name for j in await owner.journals()} == {"mine", "secret/jrnl"}
        assert await owner.read("secret/jrnl") == b"secret"


@pytest.mark.parametrize("selector", ["tier=x", "tier!=y", "name:prefix=mine/", "!tier"])
async def test_deletes_are_matched_with_their_labels(broker: EmbeddedBroker, selector: str) -> None:
    async with holding(broker) as owner, holding(broker, selector) as thief:
        await owner.create(spec("secret/jrnl", tier="y"))
        assert await thief.refused(delete("secret/jrnl")) == "not authorized to secret/jrnl"
        assert [j.spec.name for j in await owner.journals()] == ["secret/jrnl"]


async def test_deletes_of_journals_which_a_token_matches(broker: EmbeddedBroker) -> None:
    async with holding(broker) as owner, holding(broker, "tier=x") as holder:
        await owner.create(spec("mine", tier="x"))
        await holder.delete("mine")
        assert await owner.journals() == []
        # There is none any more, so that only its name can be matched.
        await holder.refused(delete("mine"))


async def test_stores_which_rewrite_paths_need_a_token_without_selector(
    broker: EmbeddedBroker,
) -> None:
    async with holding(broker) as owner, holding(broker, "name:prefix=mine/") as thief:
        await owner.create(spec("secret/jrnl", "file:///"))
        await owner.commit(b"secret", "secret/jrnl")
        await broker.flush("secret/jrnl")
        for store in (REWRITES, REWRITES.replace("find", "FIND"), f"{REWRITES}&find="):
            text = await thief.refused(upsert(spec("mine/x", "file:///", store)))
            assert text.startswith("not authorized to mine/x: a store that rewrites paths")
        # An empty argument rewrites nothing, and the first one counts.
        await thief.create(spec("mine/x", f"file:///?find=&{REWRITES.partition('?')[2]}"))
        assert await thief.read("mine/x") == b""
        # What a journal has was given to it by somebody else.
        await owner.create(spec("mine/x", "file:///?find=mine/&replace=other/"))
        kept = spec("mine/x", "file:///?find=mine/&replace=other/", length=1 << 10)
        await thief.create(kept)
        await thief.refused(upsert(spec("mine/x", "file:///?find=mine/&replace=secret/")))


OVERLAPS = [
    # The same directory, by another store.
    ("secret/jrnl", "file:///", "jrnl", "file:///secret/"),
    ("secret/jrnl", "file:///", "jrnl", "file:///area/../secret/"),
    ("secret/jrnl", "file:///", "jrnl", "file:///%73ecret/"),
    ("jrnl", "file:///secret/", "secret/jrnl", "file:///"),
    ("jrnl", "s3://bucket/secret/", "secret/jrnl", "s3://bucket/"),
    ("jrnl", "s3://bucket/secret/?region=a", "secret/jrnl", "s3://bucket/?region=b"),
    ("jrnl", "gs://bucket/secret/", "secret/jrnl", "s3://bucket/"),
    ("jrnl", "azure://c/secret/", "secret/jrnl", "azure-ad://tenant/account/c/"),
    # Above or below it, where files of one are taken for those of the other.
    ("secret/jrnl", "file:///", "secret", "file:///"),
    ("secret/jrnl", "file:///", "secret", "file:///?replace=x"),
    ("secret/jrnl", "file:///", "secret/jrnl/x", "file:///"),
    ("secret/jrnl", "file:///", "secret/jrnl/x", "file:///?replace=x"),
    ("secret/jrnl", "file:///area/", "area", "file:///"),
    # The directory to which an owner's store rewrites.
    ("other/jrnl", "file:///?find=other&replace=secret", "secret/jrnl", "file:///"),
    # Some file systems ignore case.
    ("secret/jrnl", "file:///", "JRNL", "file:///SECRET/"),
]


@pytest.mark.parametrize(("theirs", "store", "own", "chosen"), OVERLAPS)
async def test_a_token_gives_its_journal_no_files_of_others(
    broker: EmbeddedBroker, theirs: str, store: str, own: str, chosen: str
) -> None:
    async with holding(broker) as owner, holding(broker, "tier=x") as thief:
        await owner.create(spec(theirs, store, tier="y"))
        text = await thief.refused(upsert(spec(own, chosen, tier="x")))
        assert text.startswith(f"not authorized to {own}: its files may be those of other")
        # A template may lead there later on.
        await thief.create(spec(own, tier="x"))
        await thief.refused(upsert(spec(own, chosen, tier="x")))
        await owner.create(spec(own, chosen, tier="x"))
        await thief.create(spec(own, chosen, tier="x", length=1 << 10))
        postfix = 'p={{ .Spool.Registers.ValueOf "p" }}'
        await thief.refused(upsert(spec(own, chosen, tier="x", path_postfix_template=postfix)))


async def test_directories_which_do_not_meet(broker: EmbeddedBroker) -> None:
    async with holding(broker) as owner, holding(broker, "tier=x") as holder:
        await owner.create(
            spec("secret/jrnl", "file:///", "s3://bucket/area/", tier="y"),
            spec("leads/out", "file:///../", tier="y"),
            spec("bare", tier="y"),
        )
        await holder.create(
            spec("secret/j2", "file:///", tier="x"),
            spec("secret/i", "file:///", "s3://other/area/", tier="x"),
            spec("jrnl", "file:///area/", "s3://bucket/area/secret/k/", tier="x"),
            # Journals of its own may meet.
            spec("own1", "file:///", tier="x"),
            spec("own1/area", "file:///", tier="x"),
        )


async def test_registers_lead_no_files_into_directories_of_others(
    broker: EmbeddedBroker,
) -> None:
    """Whoever appends chooses the registers, from which area template makes area part of the path."""
    template = '{{ .Spool.Registers.ValueOf "to" }}'
    async with (
        holding(broker) as owner,
        holding(broker, "name=area", pb.Capability.APPEND) as thief,
    ):
        await owner.create(
            spec("area", "file:///", path_postfix_template=template), spec("area/base", "file:///")
        )
        await owner.commit(b"theirs", "area/base")
        await broker.flush("area/base")
        await thief.commit(b"forged!", "area", union_registers=pb.label_set("to", "base/c"))
        with pytest.raises(pb.StoreError, match="leads into journal area/base"):
            await broker.flush("area")
        await broker.refresh("area/base")
        assert len(await owner.fragments("area/base")) == 1
        assert await owner.read("area/base") == b"theirs"
        assert await owner.read("area") == b"forged!"


@pytest.mark.parametrize("store", ["file:///?replace=x", "file:///area/..//", "file:///./"])
async def test_files_of_nested_journals_are_theirs_by_any_spelling_of_the_store(
    broker: EmbeddedBroker, store: str
) -> None:
    """Also if the upper journal was there before it."""
    async with holding(broker) as owner, holding(broker, "tier=x") as thief:
        await thief.create(spec("secret", store, tier="x"))
        await owner.create(spec("secret/jrnl", "file:///", tier="y"))
        await owner.commit(b"secret", "secret/jrnl")
        await broker.flush("secret/jrnl")
        await broker.refresh("secret")
        assert await thief.read("secret") == b""
        assert await thief.fragments("secret") == []


async def test_excluded_prefixes_are_excluded_everywhere(broker: EmbeddedBroker) -> None:
    async with holding(broker) as owner, holding(broker, "prefix!=secret/") as thief:
        await owner.create(spec("secret/jrnl", "file:///"))
        await owner.commit(b"secret", "secret/jrnl")
        assert await thief.journals() == []
        (response,) = [r async for r in thief.read_call(pb.ReadRequest(journal="secret/jrnl"))]
        assert response.status == pb.Status.JOURNAL_NOT_FOUND
        listed = await thief.fragments_call(pb.FragmentsRequest(journal="secret/jrnl"))
        assert listed.status == pb.Status.JOURNAL_NOT_FOUND
        assert (await thief.append(b"x", "secret/jrnl")).status == pb.Status.JOURNAL_NOT_FOUND
        for change in (
            delete("secret/jrnl"),
            upsert(spec("secret/jrnl")),
            upsert(spec("secret/k")),
        ):
            await thief.refused(change)


async def test_the_checks_of_gazette_on_request(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    async with (
        new_broker(tmp_path, claim_checks="gazette") as broker,
        holding(broker) as owner,
        holding(broker, "tier=x") as holder,
        holding(broker, "tier!=y") as other,
        holding(broker, "prefix!=secret/", pb.Capability.READ) as reader,
    ):
        await owner.create(spec("secret/jrnl", "file:///", tier="y"))
        assert await reader.health("file:///") == ""
        await reader.fragments("secret/jrnl")
        await holder.create(spec("mine", REWRITES, tier="x"))
        await holder.refused(delete("mine"))  # By its name alone.
        await other.delete("secret/jrnl")
        await owner.create(spec("secret/jrnl", tier="y"))
        await holder.create(spec("secret/jrnl", tier="x"))


VICTIMS = {"secret/jrnl": "file:///", "jrnl": "file:///area/secret/", "area/base/c": "file:///"}
NAMES = [
    "secret",
    "secret/jrnl",
    "secret/jrnl/x",
    "jrnl",
    "area",
    "area/base",
    "area/base/c",
    "area/base/c/d",
    "area/secret",
    "area/secret/jrnl",
    "mine",
    "x/jrnl",
    "base/c",
]
STORES = [
    "file:///",
    "file:///area/",
    "file:///secret/",
    "file:///area/secret/",
    "file:///mine/",
    "file:///?replace=q",
    "file:///./",
    "file:///area/../",
    "file:///%61rea/",
    "file:////area//",
    "file:///area/./secret/",
    "file:///?find=mine&replace=secret/jrnl",
    "file:///?find=x&replace=area/secret",
]
TEMPLATES = (
    "",
    "",
    "jrnl",
    "base/c",
    "secret/jrnl",
    '{{ .ValueOf "to" }}',
    '{{ .Spool.Registers.ValueOf "to" }}',
)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_whatever_a_token_applies_the_files_of_others_are_theirs(
    broker: EmbeddedBroker, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    (tmp_path / "root" / "area" / "base").mkdir()
    async with holding(broker) as owner, holding(broker, "tier=x") as thief:
        for name, store in VICTIMS.items():
            await owner.create(spec(name, store, tier="y"))
            await owner.commit(f"victim of {name}".encode(), name)
        await broker.flush()
        revisions = {j.spec.name: j.mod_revision for j in await owner.journals()}
        accepted = 0
        for _ in range(50):
            name = rng.choice(NAMES)
            to = pb.label_set(
                "to", rng.choice(("jrnl", "base", "base/c", "secret/jrnl", "../secret/jrnl"))
            )
            chosen = rng.sample(STORES, rng.randint(0, 2))
            change = upsert(
                spec(name, *chosen, tier="x", path_postfix_template=rng.choice(TEMPLATES))
            )
            change.upsert.labels.labels.insert(0, to.labels[0])
            change.upsert.labels.labels.sort(key=lambda label: label.name)
            if rng.random() < 0.2:
                change = delete(name)
            try:
                await thief.apply_call(pb.ApplyRequest(changes=[change]))
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                    raise
                continue
            accepted += 1
            if name in {j.spec.name for j in await thief.journals()}:
                content = await thief.read(name)
                assert b"victim" not in content, change
                response = await thief.append(b"forged!", name, union_registers=to)
                if response.status == pb.Status.OK:
                    await _flush(broker, name)
            for victim in VICTIMS:
                await broker.refresh(victim)
                fragments = await owner.fragments(victim)
                assert [f.begin for f in fragments] == [0], change
                assert await owner.read(victim) == f"victim of {victim}".encode(), change
        assert accepted > 5
        left = {j.spec.name: j.mod_revision for j in await owner.journals()}
        assert revisions.items() <= left.items()


async def _flush(broker: EmbeddedBroker, name: str) -> None:
    try:
        await broker.flush(name)
    except pb.StoreError as error:
        if "rendered path postfix" not in str(error) and "leads out" not in str(error):
            raise


# Health of stores


async def test_reading_does_not_permit_a_store_of_ones_choice(broker: EmbeddedBroker) -> None:
    reads, applies = pb.Capability.READ, pb.Capability.READ | pb.Capability.APPLY
    async with (
        holding(broker) as owner,
        holding(broker, "tier=x", reads) as reader,
        holding(broker, "tier=x", applies) as applier,
    ):
        await owner.create(spec("mine/x", "file:///mine/", tier="x"))
        await owner.create(spec("secret/jrnl", "file:///secret/", tier="y"))
        assert await reader.health("file:///mine/") == ""
        assert await reader.health("file:///mine/", check_delete=True) == ""
        for store in ("file:///secret/", "file:///", "file:///mine/?", "s3://bucket/"):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await reader.health(store)
            assert raised.value.code() is grpc.StatusCode.UNAUTHENTICATED
            assert raised.value.details() == (
                "authorization is missing required APPLY capability, "
                "for a store that no permitted journal has"
            )
        assert await applier.health("file:///secret/") == ""
        with pytest.raises(grpc.aio.AioRpcError, match="rewrites paths"):
            await applier.health("file:///?find=.test&replace=secret")
        assert await owner.health("file:///?find=.test&replace=secret") == ""


async def test_a_broker_without_keys_checks_all_stores(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    async with new_broker(tmp_path, auth_keys=None) as broker, calling(broker.endpoint) as caller:
        request = pb.FragmentStoreHealthRequest(fragment_store="file:///")
        assert (await caller.health_call(request)).status == pb.Status.OK


async def test_checks_write_and_remove_no_other_files(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    async with holding(broker) as owner:
        await owner.create(spec("secret/jrnl", "file:///"))
        await owner.commit(b"secret", "secret/jrnl")
        await broker.flush("secret/jrnl")
        (path,) = (p for p in (tmp_path / "root" / "secret").rglob("*") if p.is_file())
        target = path.relative_to(tmp_path / "root")
        checked = f"file:///?find=.test/health-check&replace={target}"
        problem = await owner.health(checked)
        assert problem.startswith("health check would be written to another file")
        probed = f"file:///?find=p/.gazette-delete-probe&replace={target}"
        problem = await owner.health(probed, check_delete=True, check_delete_prefix="p/")
        assert problem.startswith("delete-probe would remove another file")
        assert path.read_bytes() == b"secret"
        # A store which only moves the check keeps its name.
        moved = "file:///?find=.test&replace=mine"
        assert await owner.health(moved, check_delete=True) == ""
        assert (tmp_path / "root" / "mine" / "health-check").exists()


# Options


async def test_keys_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    path = tmp_path / "keys"
    path.write_text(f"b3RoZXI=\n{KEY}\n")
    async with (
        new_broker(tmp_path, auth_keys=None, auth_keys_file=path) as broker,
        holding(broker) as owner,
        calling(broker.endpoint) as nobody,
    ):
        await owner.create(spec("area/base"))
        with pytest.raises(grpc.aio.AioRpcError, match="missing or empty Authorization token"):
            await nobody.journals()


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "no such file or directory"),
        (b"", "at least one key must be provided"),
        (b"AA==", "at least one key must be provided"),
        (b"not*base64", "failed to decode key at index 0"),
        ("schlüssel".encode(), "not base64"),
    ],
)
async def test_a_file_without_keys_fails_the_start(
    tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "keys"
    if content is not None:
        path.write_bytes(content)
    broker = EmbeddedBroker(tmp_path / "data", auth_keys_file=path)
    with pytest.raises(pb.ConfigurationError, match=f"auth_keys_file {path}: {problem}"):
        await broker.start()
    assert not (tmp_path / "data").exists()


def test_keys_are_given_once() -> None:
    with pytest.raises(pb.ConfigurationError, match="can't both be given"):
        EmbeddedBroker(auth_keys=KEY, auth_keys_file="keys")


async def test_watches_end_with_the_sight_of_a_journal(broker: EmbeddedBroker) -> None:
    """A journal which stops to match disappears from area watch."""
    async with holding(broker) as owner, holding(broker, "tier=x") as holder:
        await owner.create(spec("area/base", tier="x"))
        seen: list[list[str]] = []
        watch = holder.list_call(pb.ListRequest(watch=True))

        async def names_are(expected: list[str]) -> bool:
            response = await watch.read()
            seen.append([j.spec.name for j in response.journals])
            return seen[-1] == expected

        await eventually(lambda: names_are(["area/base"]))
        await owner.create(spec("area/base", tier="y"))
        await eventually(lambda: names_are([]))
        watch.cancel()


# All doors


async def _answers(doors: Doors, web: httpx.AsyncClient, name: str) -> dict[str, str]:
    """Return how each door answers requests for a journal, with its name taken out."""
    answers: dict[str, str] = {}

    async def note(door: str, call: Any) -> None:
        status = FirstStatus(call)
        try:
            if hasattr(call, "__aiter__") and not hasattr(call, "__await__"):
                answer = str([str(response) async for response in call])
            else:
                answer = str(await call)
        except grpc.aio.AioRpcError as error:
            error = status.unmasked(error)
            answer = f"{error.code()} {error.details()}"
        answers[door] = answer.replace(name, "NAME")

    selector = pb.parse_label_selector(f"name={name}")
    await note("List", doors.list_call(pb.ListRequest(selector=selector)))
    for offset in (0, -1, 3):
        read = pb.ReadRequest(journal=name, offset=offset, metadata_only=offset == 3)
        await note(f"Read {offset}", doors.read_call(read))
    await note("Read meta", doors.read_call(pb.ReadRequest(journal=f"{name};meta")))
    for label, request in {
        "": pb.AppendRequest(journal=name),
        "offset": pb.AppendRequest(journal=name, offset=99),
        "registers": pb.AppendRequest(journal=name, check_registers=selector),
        "suspend": pb.AppendRequest(journal=name, suspend=pb.AppendRequest.SUSPEND_NOW),
        "resume": pb.AppendRequest(journal=name, suspend=pb.AppendRequest.SUSPEND_RESUME),
    }.items():
        await note(f"Append {label}", doors.append_call(iter([request, pb.AppendRequest()])))
    for seconds in (0, 60):
        listing = pb.FragmentsRequest(journal=name, signatureTTL=Duration(seconds=seconds))
        if not seconds:
            listing.ClearField("signatureTTL")
        await note(f"ListFragments {seconds}", doors.fragments_call(listing))
    listed = await anext(aiter(doors.list_call(pb.ListRequest())))
    header = pb.Header()
    header.CopyFrom(listed.header)
    proposal = pb.Fragment(journal=name, compression_codec=pb.CompressionCodec.NONE)
    replicate = pb.ReplicateRequest(header=header, proposal=proposal, acknowledge=True)
    replicate.registers.SetInParent()
    await note("Replicate", doors.replicate_call(iter([replicate])))
    await note("Health", doors.health_call(_health_of(f"file:///{name}/")))
    for method, path, body in (
        ("GET", f"/{name}", None),
        ("GET", f"/{name}?offset=-1", None),
        ("HEAD", f"/{name}", None),
        ("PUT", f"/{name}", b"content"),
        ("POST", "/v1/journals/read", f'{{"journal": "{name}"}}'.encode()),
        (
            "POST",
            "/v1/journals/list",
            f'{{"selector":{{"include":{{"labels":[{{"name":"name","value":"{name}"}}]}}}}}}'.encode(),
        ),
        ("GET", "/debug/metrics", None),
    ):
        response = await web.request(method, path, content=body)
        headers = {k: v for k, v in response.headers.items() if k != "date"}
        text = "\n".join(line for line in response.text.splitlines() if "write_head" in line)
        shown = text if path == "/debug/metrics" else response.text
        answers[f"{method} {path}".replace(name, "NAME")] = (
            f"{response.status_code} {headers if path != '/debug/metrics' else ''} {shown}"
        ).replace(name, "NAME")
    await note("Apply", doors.apply_call(pb.ApplyRequest(changes=[delete(name)])))
    return answers


def _health_of(store: str) -> pb.FragmentStoreHealthRequest:
    return pb.FragmentStoreHealthRequest(fragment_store=store)


@pytest.mark.parametrize("selector", ["tier=x", "tier!=y", "name:prefix=mine/", "!tier"])
async def test_a_hidden_journal_is_like_a_missing_one(tmp_path: Path, selector: str) -> None:
    """At each door, whatever the request is."""
    (tmp_path / "root" / "hidden" / "jrnl").mkdir(parents=True)
    everything = ALL & ~pb.Capability.APPLY
    async with (
        new_broker(tmp_path, http_port=0) as broker,
        holding(broker) as owner,
        holding(broker, selector, everything) as thief,
    ):
        await owner.create(
            spec("hidden/jrnl", "file:///", "file:///hidden/jrnl/", tier="y"), spec("mine/jrnl")
        )
        await owner.commit(b"secret", "hidden/jrnl")
        await broker.flush("hidden/jrnl")
        await owner.commit(b"secret", "hidden/jrnl")
        headers = {"Authorization": f"Bearer {thief.token}"}
        async with httpx.AsyncClient(base_url=broker.http_endpoint, headers=headers) as web:
            hidden = await _answers(thief, web, "hidden/jrnl")
            missing = await _answers(thief, web, "hidden/none")
        assert hidden == missing
        assert "secret" not in str(hidden)
        # The doors aren't closed to all.
        headers = {"Authorization": f"Bearer {owner.token}"}
        async with httpx.AsyncClient(base_url=broker.http_endpoint, headers=headers) as web:
            seen = await _answers(owner, web, "hidden/jrnl")
        assert {door: seen[door] for door in seen if seen[door] == hidden[door]} == {}
