"""Counts words: the program of `Dockerfile`, in whose place you put yours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gazette_aio import ACK_TXN, json_adapter
from gazette_aio.consumer import Application, JSONFileStore, main

if TYPE_CHECKING:
    from gazette_aio import Adapter, Envelope


class WordCount(Application[dict[str, Any], JSONFileStore[dict[str, int]]]):
    def adapter(self, spec) -> Adapter[dict[str, Any]]:
        return json_adapter()

    def new_store(self, shard, recorder) -> JSONFileStore[dict[str, int]]:
        return JSONFileStore(recorder, {})

    def consume_message(self, shard, store, envelope: Envelope[dict[str, Any]], publisher) -> None:
        if envelope.flags == ACK_TXN:
            return
        for word in envelope.message["line"].split():
            store.state[word] = store.state.get(word, 0) + 1


if __name__ == "__main__":
    main(WordCount())
