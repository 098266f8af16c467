"""Recording of a transaction."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gazette_aio.protocol.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Generator

    from gazette_aio.consumer.recoverylog.recording.recorder import Recorder


@contextlib.contextmanager
def recorded_as_a_whole(recorder: Recorder) -> Generator[None]:
    """Have everything that is recorded within the block in one append, or nothing of it.

    If the block fails, so does the recorder: files differ from what is recorded of them, and a part
    of a transaction must not be recovered.

    Raises:
        StoreError: Recording has failed before.
    """
    with recorder.atomic():
        try:
            yield
        except BaseException as error:
            recorder.fail(StoreError(f"a change wasn't recorded as a whole: {error}"))
            raise
