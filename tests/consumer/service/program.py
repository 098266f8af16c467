"""A consumer's program."""

from __future__ import annotations

from gazette_aio.consumer import main
from tests.consumer.service.applications import Summing

if __name__ == "__main__":
    main(Summing())
