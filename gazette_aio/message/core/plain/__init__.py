"""The core in plain Python: the reference of the compiled form, with the same results."""

from __future__ import annotations

from gazette_aio.message.core.plain.documents import Schema as Schema
from gazette_aio.message.core.plain.journal import Batch as Batch
from gazette_aio.message.core.plain.journal import Journal as Journal
from gazette_aio.message.core.plain.rows import Stamper as Stamper
from gazette_aio.message.core.plain.rows import count_objects as count_objects
from gazette_aio.message.core.plain.rows import table_lines as table_lines
