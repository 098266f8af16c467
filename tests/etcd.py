"""A real Etcd for tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from gazette_aio.consumer.keyspace.etcd._generated import etcd_pb2 as pb
from gazette_aio.testing.etcd_process import EtcdProcess, NoEtcdError, find_binary


@contextmanager
def cluster(directory: Path, count: int = 3) -> Iterator[list[Etcd]]:
    """Run a cluster of several members."""
    members = [Etcd(directory / f"member-{number}") for number in range(count)]
    with ExitStack() as stack:
        for member in members:
            member.members = members
            stack.callback(member.stop)
            member.launch()
        for member in members:
            member.wait_until_healthy()
        yield members


def binary() -> Path:
    """Return the program. Without one, tests are skipped, or fail if `$CI` is true."""
    try:
        return find_binary()
    except NoEtcdError as error:
        if os.environ.get("CI") == "true":
            pytest.fail(str(error))
        pytest.skip(str(error))


class Etcd(EtcdProcess):
    """A member, with what tests do to it."""

    def launch(self) -> None:
        """Start the process."""
        binary()
        super().launch()

    def wipe(self) -> None:
        """Delete all keys."""
        self.call("KV/DeleteRange", pb.DeleteRangeRequest(key=b"\0", range_end=b"\0"))

    def compact(self, revision: int) -> None:
        """Drop what was before a revision."""
        self.call("KV/Compact", pb.CompactionRequest(revision=revision, physical=True))

    def call(self, method: str, request: Any) -> bytes:
        """Call an RPC, and return the response, which is left encoded."""
        with grpc.insecure_channel(f"127.0.0.1:{self.port}") as channel:
            call: Any = channel.unary_unary(f"/etcdserverpb.{method}")
            answer: bytes = call(request.SerializeToString(), timeout=30)
            return answer

    def control(self, *command: str) -> None:
        """Run a command of `etcdctl`."""
        subprocess.run(
            [binary().with_name("etcdctl"), f"--endpoints={self.endpoint}", *command],
            check=True,
            stdout=subprocess.DEVNULL,
        )
