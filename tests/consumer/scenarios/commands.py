"""Commands of the reference's command line, run as those of ours."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

Json = Any
Step = dict[str, Any]

_PREFIXES = ("BROKER_", "CONSUMER_")
_OTHERS = {name: value for name, value in os.environ.items() if not name.startswith(_PREFIXES)}
# Tables and YAML have the same content. What else is printed has another form here.
_TABLE, _YAML, _DRY_RUN, _OTHER = range(4)


async def run_command(step: Step, consumer: str, broker: str) -> Json:
    """Run the command of a step; return what's comparable of its outcome."""
    with tempfile.TemporaryDirectory() as directory:
        arguments = [each.replace("{dir}", directory) for each in step["gazctl"]]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "gazette_aio"),
            *(each for each in arguments if not each.startswith("--log.level=")),
            env={**_OTHERS, "CONSUMER_ADDRESS": consumer, "BROKER_ADDRESS": broker},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate(step.get("stdin", "").encode())
        outcome: Json = {"fails": process.returncode != 0, "stderr": err.decode()}
        outcome["stdout"] = _printed(_form(step), out.decode())
        if "list_dir" in step:
            outcome |= _recovered(Path(directory, step["list_dir"]))
        return outcome


def _recovered(directory: Path) -> Json:
    state = (directory / "state.json").read_text().splitlines()[1]
    return {"files": sorted(x.name for x in directory.iterdir()), "state": json.loads(state)}


def comparable(step: Step) -> Json:
    """Return what the outcome of a step is expected to be."""
    expected = dict(step["expect"])
    lines, form = expected["stdout"], _form(step)
    if form is _TABLE:
        lines = [line.replace("|", " ").split() for line in lines]
    elif form is _DRY_RUN:
        lines = re.sub(
            r"^ *labels: <\n *>\n", "", "\n".join(lines), flags=re.MULTILINE
        ).splitlines()
    expected["stdout"] = "${any}" if form is _OTHER else lines
    expected["fails"] = expected.pop("exit") != 0
    expected["stderr"] = _reason(expected["stderr"]) if expected["fails"] else "${any}"
    return expected


def _form(step: Step) -> int:
    if step.get("columns"):
        return _TABLE
    if "yaml" in step["gazctl"]:
        return _YAML
    is_applied = step["gazctl"][1] == "apply" and "--dry-run" in step["gazctl"]
    return _DRY_RUN if is_applied else _OTHER


def _printed(form: int, text: str) -> Json:
    lines = text.splitlines()
    if form is _TABLE:
        return [line.split() for line in lines]
    if form is _YAML:
        return [re.sub(r"revision: \d+$", "revision: ${n}", line) for line in lines]
    if form is _DRY_RUN:
        # Messages are bracketed otherwise, and what would be done is told before.
        lines = lines[next((i for i, line in enumerate(lines) if line == "changes {"), 0) :]
        return [re.sub("}$", ">", re.sub(r" \{$", ": <", line)) for line in lines]
    return lines


def _reason(lines: Json) -> str:
    """Return a pattern of the reason of a refusal."""
    logged = lines[0] if isinstance(lines, list) and lines else ""
    found = re.search(r' err="((?:[^"\\]|\\.)*)"', logged)
    return "~" + re.escape(json.loads('"' + found[1] + '"')) if found else "${any}"
