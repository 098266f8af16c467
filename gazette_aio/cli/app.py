"""The command `gazette-aio`, its log level, and the reporting of failures."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import TYPE_CHECKING

import click

from gazette_aio import __version__
from gazette_aio.cli.shell.failures import (
    CommandError,
    ExitCode,
    InputError,
    exit_code,
    explain,
    lacks_extra,
)
from gazette_aio.cli.shell.groups import CommandGroup
from gazette_aio.cli.shell.logs import configure_logging, log_options
from gazette_aio.cli.shell.output import print_line
from gazette_aio.cli.shell.streams import discard_output, occupy_closed_streams
from gazette_aio.cli.tools.completion import complete
from gazette_aio.protocol import GazetteError

if TYPE_CHECKING:
    from collections.abc import Sequence

_PROGRAM = "gazette-aio"
_COMMANDS = {
    "attach-uuids": "gazette_aio.cli.tools.attach_uuids",
    "bench": "gazette_aio.cli.tools.bench",
    "broker": "gazette_aio.cli.broker",
    "completion": "gazette_aio.cli.tools.completion",
    "console": "gazette_aio.cli.tools.console",
    "doctor": "gazette_aio.cli.tools.doctor",
    "journals": "gazette_aio.cli.journals.commands",
    "print-config": "gazette_aio.cli.tools.print_config",
    "serve": "gazette_aio.cli.serve",
    "shards": "gazette_aio.cli.shards.commands",
    "token": "gazette_aio.cli.tools.token",
}


class _Commands(CommandGroup):
    """Imports a command when it runs: `serve` needs no client, and clients no broker."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if (module := _COMMANDS.get(cmd_name)) is None:
            return None
        command: click.Command = getattr(
            importlib.import_module(module), cmd_name.replace("-", "_")
        )
        return command


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001
    if wanted and not context.resilient_parsing:
        # No other command pays for this import.
        form = importlib.import_module("gazette_aio.message.core").FORM
        print_line(f"{_PROGRAM}, version {__version__}, {form} core")
        context.exit()


@click.group(
    name=_PROGRAM,
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 refused or failed, 2 wrong usage or input, 130 interrupted.",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version, and the form of the core of messages.",
)
@log_options
def cli() -> None:
    """Work with Gazette journals, and serve them from a directory."""


def run(args: Sequence[str]) -> int:
    """Run the command line `args`, and return its exit code. A failure is one line on stderr."""
    occupy_closed_streams()
    # gRPC's core would log errors which this program reports.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    configure_logging()
    if (code := complete(cli, _PROGRAM, os.environ)) is not None:
        return code
    try:
        # Not click's main(), which has other exit codes for Ctrl-C and broken pipes.
        with cli.make_context(_PROGRAM, list(args)) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except BrokenPipeError as error:
        discard_output()
        return exit_code(error)
    except (KeyboardInterrupt, click.Abort):
        return ExitCode.INTERRUPTED
    except (GazetteError, CommandError, InputError, OSError, ImportError) as error:
        if isinstance(error, ImportError) and not lacks_extra(error):
            raise
        print_line(f"{_PROGRAM}: {explain(error)}", err=True)
        if getattr(error, "errno", None) == errno.EBADF:
            discard_output()
        return exit_code(error)
    return ExitCode.OK
