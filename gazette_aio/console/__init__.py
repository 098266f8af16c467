"""Console in the browser: journals of a cluster, and shards of a consumer.

Pure: `guards`, `views`, `shard_views` and `specs` decide; `states`, `message_uuids` and
`tail_forms` classify messages. Shell: `routes` answer requests by clients of the brokers and of a
consumer, `listings` caches large listings, `seek` finds the offset of a time, `tails` sends
content, and `server` listens, or runs `beside` another server. The pages are in `page`, and need no
build. Imports `consumer.api`, `message`, `client`, `protocol`, `aio` and `serving`.
"""

from __future__ import annotations

from gazette_aio.console.beside import ServedWithConsole
from gazette_aio.console.listings import ListingLimits
from gazette_aio.console.server import Console
from gazette_aio.console.tails import TailLimits

__all__ = ["Console", "ListingLimits", "ServedWithConsole", "TailLimits"]
