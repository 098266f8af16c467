"""Fragments which workers fetch from a store, by URLs which a broker signs."""

from __future__ import annotations

import logging
import os
import re
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from pyspark.errors import PythonException

import gazette_aio.protocol as pb

pytest.importorskip("obstore", reason="brokers reach S3 by it")
server = pytest.importorskip("moto.server", reason="it's the store")
EXPECTED = [0, 1, 10, 11, 20, 21, 99]


@pytest.fixture(scope="module")
def store(spark: Any) -> Iterator[str]:
    """URL of a bucket. Only the broker, which is in this process, has its credentials."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIDOFTESTS")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-tests")
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        serving = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        serving.start()
        host, port = serving.get_host_and_port()
        request = urllib.request.Request(f"http://{host}:{port}/bucket", method="PUT", data=b"")
        urllib.request.urlopen(request, timeout=60).close()
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        yield "s3://bucket/some/"
        serving.stop()


@pytest.fixture
def stored(journals: Any, store: str) -> Any:
    """A journal of three fragments in the store, and of another which isn't there yet."""
    journals.create("one", stores=[store], codec=pb.CompressionCodec.GZIP)
    for number in range(3):
        journals.transaction("one", [{"id": 10 * number}, {"id": 10 * number + 1}])
        journals.persist("one")
    journals.publish("one", [{"id": 99}])
    return journals


def read(spark: Any, journals: Any, **options: Any) -> Any:
    given = journals.options(fileRoot=None, **options)
    return spark.read.format("talkative").schema("id BIGINT").options(**given).load()


def ids(frame: Any) -> list[int]:
    return sorted(row["id"] for row in frame.collect())


def test_workers_fetch_fragments(spark: Any, stored: Any, told: Any) -> None:
    # All of what the broker itself sends.
    reads = stored.broker.embedded.control.observe("read", journal=stored.name("one"))
    frame = read(spark, stored, io="direct")
    try:
        assert ids(frame) == EXPECTED
        assert all(request.do_not_proxy or request.metadata_only for request in reads.requests)
    finally:
        reads.remove()
    # Private: PySpark only prints plans.
    shown = [told(), frame._jdf.queryExecution().toString()]
    assert "DEBUG:tests.pyspark.probes:" in shown[0], "workers tell all"
    for text in shown:
        assert "X-Amz-" not in text
        assert "secret-of-tests" not in text


def test_a_file_which_is_gone(spark: Any, stored: Any, told: Any) -> None:
    request = pb.FragmentsRequest(journal=stored.name("one"), signatureTTL=Duration(seconds=60))
    listed = stored.broker.run(stored.broker.client.list_fragments(request)).fragments
    assert "X-Amz-Signature=" in listed[1].signed_url
    with urllib.request.urlopen(
        urllib.request.Request(listed[1].signed_url, method="DELETE"), timeout=60
    ) as response:
        assert response.status == 204
    begin, end = listed[1].spec.begin, listed[1].spec.end
    with pytest.raises(PythonException) as raised:
        read(spark, stored, io="direct", fetchTimeout="100ms").collect()
    error: Any = raised.value
    assert f"lost [{begin}, {end}) of journal {stored.name('one')}" in str(error)
    # On a busy machine, the store may not have answered within that time.
    assert re.search("404|doesn't appear", str(error))
    frame = read(spark, stored, io="direct", fetchTimeout="100ms", failOnDataLoss="false")
    assert ids(frame) == [0, 1, 20, 21, 99]
    # Private: PySpark has the stack of Java in no other place.
    for text in (told(), str(error), error._stackTrace):
        assert "X-Amz-" not in text
        assert "secret-of-tests" not in text
