"""TLS and tokens between Spark's processes and a broker, and where secrets must not show."""

from __future__ import annotations

import itertools

import pytest
import trustme
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException

import gazette_aio.protocol as pb
from gazette_aio.client import TLSOptions
from gazette_aio.spark import recover_sink
from tests.pyspark import tokens
from tests.pyspark.journals import Broker, Journals
from tests.pyspark.limits import DEADLINE_SECONDS
from tests.pyspark.versions import STREAMS

pytestmark = STREAMS

PROVIDER = {"tokenProvider": "tests.pyspark.tokens:token"}
REFUSED = r"UNAUTHENTICATED: broker \S+: verifying Authorization"
TOKENS_BEGIN = "eyJ"  # That of all objects of JSON in base64.
_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A broker which wants certificates and tokens, and options of certificates."""
    root = tmp_path_factory.mktemp("guarded")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(root / "ca.pem"))
    for name, identity in (("broker", "127.0.0.1"), ("client", "spark")):
        issued = authority.issue_cert(identity)
        issued.cert_chain_pems[0].write_to_path(str(root / f"{name}.pem"))
        issued.private_key_pem.write_to_path(str(root / f"{name}-key.pem"))
    options = {
        "tls.caFile": str(root / "ca.pem"),
        "tls.certFile": str(root / "client.pem"),
        "tls.keyFile": str(root / "client-key.pem"),
    }
    ca, certificate, key = options.values()
    with Broker(
        root,
        client={
            "tls": TLSOptions(ca_file=ca, certificate_file=certificate, key_file=key),
            "auth": pb.KeyedAuth(tokens.KEY),
        },
        server_cert_file=root / "broker.pem",
        server_cert_key_file=root / "broker-key.pem",
        server_ca_file=root / "ca.pem",
        auth_keys=tokens.KEY,
    ) as broker:
        yield broker, options


def ids(frame):
    return sorted(row["id"] for row in frame.collect())


def plans_of(frame):
    # Private: PySpark only prints plans.
    execution = frame._jdf.queryExecution()
    modes = frame.sparkSession._jvm.org.apache.spark.sql.execution
    return [
        execution.explainString(modes.ExplainMode.fromString(mode))
        for mode in ("simple", "extended", "codegen", "cost", "formatted")
    ]


@pytest.fixture
def journals(guarded, request):
    """Journals of this test: two to read, two to publish to, and a commit journal."""
    journals = Journals(guarded[0], f"{next(_NUMBERS)}/")
    journals.create("in/a", "in/b", "out/a", "out/b", "commits")
    for number, name in enumerate(("in/a", "in/b")):
        journals.transaction(name, [{"id": number}, {"id": 10 + number}])
        journals.persist(name)
    return journals


@pytest.fixture
def options(guarded, journals):
    """Options of a source and of a sink, by which they're authorized."""
    broker, certificates = guarded

    def make(**credentials):
        connection = {"brokers": broker.endpoint} | certificates | credentials
        return connection | {"prefix": journals.name("in/")}, connection | {
            "prefix": journals.name("out/"),
            "commitJournal": journals.name("commits"),
        }

    return make


def stream(spark, source, sink, checkpoint):
    """Return the writer of a query from a source to a sink."""
    reader = spark.readStream.format("talkative").options(**source, startingOffsets="earliest")
    writer = reader.schema("id BIGINT").load().writeStream.format("talkative").options(**sink)
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)


def require_no_secret(*texts):
    for text in texts:
        found = text.partition(TOKENS_BEGIN)
        assert not found[1], f"a token: {found[0][-200:]}…"
        assert tokens.KEY not in text
        assert "PRIVATE KEY" not in text


@pytest.mark.parametrize("given", ["provider", "token"])
def test_batches_streams_and_sinks(spark, journals, options, told, tmp_path, given, capsys):
    token = tokens.token()
    assert token.startswith(TOKENS_BEGIN)
    source, sink = options(**({"token": token} if given == "token" else PROVIDER))
    frame = spark.read.format("talkative").options(**source, inferSchema="true").load()
    assert ids(frame) == [0, 1, 10, 11]
    frame.write.format("talkative").mode("append").options(**sink).save()
    checkpoint = tmp_path / "checkpoint"
    query = stream(spark, source, sink, checkpoint).start()
    try:
        assert query.awaitTermination(DEADLINE_SECONDS)
        query.explain(extended=True)
        shown = [capsys.readouterr().out, str(query.lastProgress), str(query.status)]
    finally:
        query.stop()
    found = journals.committed("out/a", "out/b")
    assert sorted(message["id"] for message in found) == sorted([0, 1, 10, 11] * 2)
    connection = {name: text for name, text in sink.items() if "." in name or "oken" in name}
    connection["brokers"] = sink["brokers"]
    assert len(recover_sink(connection, journals.name("commits"))) == 2

    offsets = [file.read_text() for file in (checkpoint / "offsets").glob("[0-9]*")]
    assert journals.name("in/a") in offsets[0]
    log = told()
    assert "DEBUG:tests.pyspark.probes:" in log, "workers tell all"
    assert "DEBUG MicroBatchExecution" in log, "and the JVM does"
    require_no_secret(log, *plans_of(frame), *shown, *offsets, journals.content("commits").decode())


@pytest.mark.slow
def test_whom_the_broker_refuses(spark, guarded, journals, options, told, tmp_path):
    """Processes which plan, and then one which executes."""
    source, sink = options(**PROVIDER)
    by_token = options(token=tokens.token(tokens.OTHER_KEY))
    by_provider = options(tokenProvider="tests.pyspark.tokens:wrong_token")
    errors = []

    def load(given):
        return spark.read.format("talkative").schema("id BIGINT").options(**given).load()

    def save(to):
        load(source).write.format("talkative").mode("append").options(**to).save()

    for refused, _ in (by_token, by_provider):
        with pytest.raises(AnalysisException, match=REFUSED) as raised:
            load(refused).collect()
        errors.append(raised.value)
    with pytest.raises(Exception, match=REFUSED) as raised:
        save(by_token[1])
    errors.append(raised.value)
    query = stream(spark, by_token[0], sink, tmp_path / "one").start()
    with pytest.raises(StreamingQueryException, match=REFUSED) as raised:
        query.awaitTermination(DEADLINE_SECONDS)
    errors.append(raised.value)
    fault = guarded[0].embedded.control.keep(
        "read",
        journal=journals.prefix,
        where=lambda request: not request.metadata_only,
        fail=("UNAUTHENTICATED", "the token has expired"),
    )
    timed = {"fetchTimeout": "100ms"}
    by_token = options(token=tokens.token())
    try:
        for given in (source, by_token[0]):
            with pytest.raises(PythonException, match="the token has expired") as raised:
                load(given | timed).collect()
            errors.append(raised.value)
        query = stream(spark, by_token[0] | timed, by_token[1], tmp_path / "two").start()
        with pytest.raises(StreamingQueryException, match="the token has expired") as raised:
            query.awaitTermination(DEADLINE_SECONDS)
        errors.append(raised.value)
    finally:
        fault.remove()
    # Private: PySpark has the stack of Java in no other place.
    require_no_secret(told(), *map(str, errors), *(error._stackTrace for error in errors))
