"""The examples of consumers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc.aio
import pytest
from click.testing import CliRunner

from examples import stream_sum, word_count
from gazette_aio.consumer.service.process import command
from gazette_aio.testing import consumer_harness

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
async def test_streams_are_summed_though_a_member_crashes() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "examples.stream_sum",
        "--streams=8", "--chunks=20", "--seed=1",
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert out.decode().splitlines()[-1] == (
        "8 streams of 20 chunks were summed exactly once (seed 1)"
    )


def test_the_application_has_a_command_line() -> None:
    result = CliRunner().invoke(command(stream_sum.StreamSum()), ["print-config"])
    assert result.exit_code == 0
    assert "[etcd]" in result.output


def test_a_sum_refuses_a_chunk_out_of_order() -> None:
    total = stream_sum.Sum("one")
    assert not total.add(stream_sum.Chunk("one", 1, b"data"))
    with pytest.raises(ValueError, match="chunk 3 of stream one follows 1"):
        total.add(stream_sum.Chunk("one", 3, b"data"))
    assert total.add(stream_sum.Chunk("one", 2, b""))


@pytest.mark.slow
async def test_words_are_counted_in_rocksdb_though_a_member_crashes() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "examples.rocksdb_word_count",
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert out.decode().split("\n") == [
        "1 a", "2 are", "1 gazette", "2 journals", "2 logs", "2 of", "1 shard", "2 the", "",
    ]  # fmt: skip


@pytest.mark.slow
async def test_pairs_of_words_are_counted_and_asked_for_through_any_member() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "-m", "examples.word_count",
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert process.returncode == 0
    assert out.decode().splitlines() == [
        "6 pairs", "{'to be': 2}", "{'to be': 2}", "8 pairs", "{'to be': 3}",
    ]  # fmt: skip


async def test_texts_have_pairs_from_start_to_end() -> None:
    assert word_count.pairs_of("To be, or to be!") == {
        "START to": 1, "to be": 2, "be or": 1, "or to": 1, "be END": 1,
    }  # fmt: skip
    assert word_count.pairs_of("") == {"START END": 1}


async def test_clients_are_told_that_no_member_serves_a_shard() -> None:
    async with consumer_harness() as harness:
        await word_count.create_partitions(harness.client, 1)
        member = await harness.start_member(word_count.WordCount())
        question = word_count.Question("to", "words-000")
        with pytest.raises(grpc.aio.AioRpcError, match="SHARD_NOT_FOUND"):
            await word_count.ask(member.endpoint, word_count.QUERY, question)
