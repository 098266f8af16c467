"""A process that runs the command line again and again, which spares each run the imports.

Requests and answers are lines of JSON. Standard streams of a run are files, as in a shell.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import sys
import tempfile
import traceback
from typing import Any, BinaryIO

from gazette_aio.cli.app import run


def main() -> None:
    logging.getLogger("asyncio").addFilter(is_of_this_run)
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    for line in requests:
        request = json.loads(line)
        os.environ.clear()
        os.environ.update(request["env"])
        os.chdir(request["directory"])
        answer = answer_to(request["args"], base64.b64decode(request["stdin"]))
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def is_of_this_run(record: logging.LogRecord) -> bool:
    """Leave out what the gRPC library tells of the closed loop of an earlier run."""
    return "PollerCompletionQueue" not in record.getMessage()


def answer_to(args: list[str], given: bytes) -> dict[str, Any]:
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        stdin.write(given)
        stdin.seek(0)
        for number, file in enumerate((stdin, stdout, stderr)):
            os.dup2(file.fileno(), number)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - Replaced by the next run.
        try:
            code = run(args)
        except Exception:  # noqa: BLE001 - The process serves other tests, too.
            traceback.print_exc()
            code = -1
        sys.stdout.flush()
        sys.stderr.flush()
        return {"code": int(code), "out": content(stdout), "err": content(stderr)}


def content(file: BinaryIO) -> str:
    file.seek(0)
    return base64.b64encode(file.read()).decode()


if __name__ == "__main__":
    main()
