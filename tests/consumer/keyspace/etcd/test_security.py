"""Certificates, and users with passwords."""

from __future__ import annotations

import asyncio
import logging

import grpc
import pytest
import trustme

from gazette_aio.client.options import TLSOptions
from gazette_aio.consumer.keyspace.errors import StoreRefusedError
from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb
from gazette_aio.consumer.keyspace.etcd.options import EtcdOptions
from gazette_aio.consumer.keyspace.etcd.store import EtcdStore
from gazette_aio.consumer.keyspace.operations import Put
from gazette_aio.testing.leaks import no_leaks
from tests.consumer.keyspace.etcd.stub import StubEtcd
from tests.etcd import Etcd
from tests.waiting import eventually

PASSWORD = "correct horse"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Files of an authority, and of a certificate with its key."""
    directory = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(directory / "ca.pem")
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.cert_chain_pems[0].write_to_path(directory / "cert.pem")
    issued.private_key_pem.write_to_path(directory / "key.pem")
    trustme.CA().cert_pem.write_to_path(directory / "stranger.pem")
    return directory


@pytest.fixture(scope="module")
def secure_etcd(tmp_path_factory, certificates):
    options = (
        f"--cert-file={certificates / 'cert.pem'}",
        f"--key-file={certificates / 'key.pem'}",
        f"--trusted-ca-file={certificates / 'ca.pem'}",
        "--client-cert-auth",
    )
    with Etcd(tmp_path_factory.mktemp("etcd"), *options, tls=True) as server:
        yield server


def tls(certificates, ca="ca.pem"):
    return TLSOptions(
        ca_file=certificates / ca,
        certificate_file=certificates / "cert.pem",
        key_file=certificates / "key.pem",
    )


async def test_tls(secure_etcd, certificates, caplog):
    caplog.set_level(logging.DEBUG, "gazette_aio")
    options = EtcdOptions(endpoints=(secure_etcd.endpoint,), tls=tls(certificates))
    async with no_leaks(), EtcdStore(options) as store, store.lease(6) as lease:
        put = Put("/a", b"", lease=lease.id)
        revision = (await store.transact((), [put])).header.revision
        watch = store.watch("/a", revision)
        assert (await anext(watch)).events[0].key == "/a"
        await watch.aclose()
        # The thread of the lease has its own connection.
        await eventually(lambda: f"lease {lease.id:x} is renewed" in caplog.text)
        assert not lease.lost.is_set()


async def test_an_etcd_of_another_authority_is_not_trusted(secure_etcd, certificates, caplog):
    options = EtcdOptions(
        endpoints=(secure_etcd.endpoint,), tls=tls(certificates, ca="stranger.pem")
    )
    opening = asyncio.create_task(EtcdStore(options).__aenter__())
    await eventually(lambda: "no connection to Etcd" in caplog.text)
    await eventually(lambda: "certificate" in caplog.text.lower())
    assert not opening.done()
    opening.cancel()
    await asyncio.wait((opening,))


@pytest.fixture(scope="module")
def guarded_etcd(tmp_path_factory):
    """An Etcd with users. Tests may restart it, and leave keys."""
    with Etcd(tmp_path_factory.mktemp("etcd")) as server:
        server.control("user", "add", f"root:{PASSWORD}")
        server.control("user", "grant-role", "root", "root")
        server.control("role", "add", "consumers")
        server.control("role", "grant-permission", "--prefix=true", "consumers", "readwrite", "/a/")
        server.control("user", "add", f"member:{PASSWORD}")
        server.control("user", "grant-role", "member", "consumers")
        server.control("auth", "enable")
        yield server


def member(server, **options):
    options = {"user": "member", "password": PASSWORD, **options}
    return EtcdStore(EtcdOptions(endpoints=(server.endpoint,), **options))


@pytest.mark.slow
async def test_users(guarded_etcd, caplog):
    caplog.set_level(logging.DEBUG)
    async with no_leaks(), member(guarded_etcd) as store, store.lease(60) as lease:
        first = (await store.transact((), [Put("/a/1", b"", lease=lease.id)])).header.revision
        watch = store.watch("/a/", first)
        assert len((await anext(watch)).events) == 1
        # Etcd forgets tokens when it ends.
        await asyncio.to_thread(guarded_etcd.stop)
        await asyncio.to_thread(guarded_etcd.start)
        second = (await store.transact((), [Put("/a/2", b"")])).header.revision
        assert [each.key for each in (await store.range("/a/")).entries] == ["/a/1", "/a/2"]
        assert (await anext(watch)).events[0].mod_revision == second
        await watch.aclose()
    assert PASSWORD not in caplog.text


async def test_a_lease_gets_a_new_token():
    header = pb.ResponseHeader(cluster_id=1, member_id=2, revision=3, raft_term=4)
    renewed = pb.LeaseKeepAliveResponse(header=header, ID=7, TTL=6)
    refused = (grpc.StatusCode.UNAUTHENTICATED, "etcdserver: invalid auth token")
    script = {
        "Authenticate": [pb.AuthenticateResponse(token=each) for each in ("one", "two")],
        "LeaseGrant": [pb.LeaseGrantResponse(header=header, ID=7, TTL=6)],
        "LeaseKeepAlive": [lambda token: renewed if token == "two" else refused],
        "LeaseRevoke": [pb.LeaseRevokeResponse(header=header)],
    }

    def calls():
        tokens = [metadata.get("token") for metadata in stub.metadata]
        return [*zip(stub.calls, tokens, strict=True)]

    async with StubEtcd(**script) as stub, member(stub) as store, store.lease(6):
        await eventually(lambda: ("LeaseKeepAlive", "two") in calls())
    # The thread may try the old one again, until the event loop has the new one.
    assert [*dict.fromkeys(calls())] == [
        ("Authenticate", None),
        ("Status", "one"),
        ("LeaseGrant", "one"),
        ("LeaseKeepAlive", "one"),
        ("LeaseKeepAlive", "two"),
        ("LeaseRevoke", "two"),
    ]
    assert stub.calls.count("Authenticate") == 2


@pytest.mark.slow
async def test_a_watch_gets_a_new_token(guarded_etcd):
    async with member(guarded_etcd) as store:
        first = (await store.transact((), [Put("/a/1", b"")])).header.revision
        await asyncio.to_thread(guarded_etcd.stop)
        await asyncio.to_thread(guarded_etcd.start)
        # No call has found out before that the token is outdated.
        watch = store.watch("/a/", first)
        assert len((await anext(watch)).events) == 1
        await watch.aclose()


async def test_what_a_user_may_not_do(guarded_etcd):
    async with member(guarded_etcd) as store:
        with pytest.raises(StoreRefusedError, match="permission denied"):
            await store.range("/b/")
        with pytest.raises(StoreRefusedError, match="permission denied"):
            await store.transact((), [Put("/b/1", b"")])
        with pytest.raises(StoreRefusedError, match="permission denied"):
            await anext(store.watch("/b/", 1))


async def test_wrong_passwords_and_missing_users(guarded_etcd):
    with pytest.raises(StoreRefusedError, match="invalid user ID or password") as caught:
        async with member(guarded_etcd, password="battery staple"):
            pytest.fail("a wrong password was accepted")
    assert "battery staple" not in str(caught.value)
    async with member(guarded_etcd, user="", password="") as store:
        with pytest.raises(StoreRefusedError, match="user name is empty"):
            await store.range("/a/")


async def test_an_etcd_which_asks_for_no_users(etcd, caplog):
    async with member(etcd) as store:
        assert (await store.range("/")).entries == ()
        assert "Etcd asks for no user" in caplog.text
        async with store.lease(60):
            pass
