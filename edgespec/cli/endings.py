"""How a command ends: silently, or with one line on stderr and an exit code.

2: it was used wrongly; 1: it failed; 130: interrupted; 141: nobody reads its output any more.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, NoReturn

import click

from edgespec.errors import EdgespecError, UsageError

FAILED, USED_WRONGLY, INTERRUPTED, UNREAD = 1, 2, 130, 141


class Group(click.Group):
    """The top command; every error of any command passes here."""

    def main(self, *args: Any, **options: Any) -> Any:
        if not options.get("standalone_mode", True):
            return super().main(*args, **options)
        try:
            code = super().main(*args, **{**options, "standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(USED_WRONGLY)
        except click.ClickException as error:
            _say(error.format_message(), _help_hint(error))
            sys.exit(error.exit_code)
        except click.Abort as abort:
            if isinstance(abort.__cause__, KeyboardInterrupt):
                sys.exit(INTERRUPTED)
            _say("aborted")
            sys.exit(FAILED)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError:
            _end_unread()
        except EdgespecError as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            _say(str(error))
            sys.exit(USED_WRONGLY if isinstance(error, UsageError) else FAILED)
        except Exception as error:
            if ctx.params.get("debug"):
                traceback.print_exc()
            hint = "" if ctx.params.get("debug") else "to see where, run: edgespec --debug …"
            _say(f"this is a bug: {type(error).__name__}: {error}", hint)
            sys.exit(FAILED)


def _say(message: str, hint: str = "") -> None:
    line = " ".join(f"{message} ({hint})".splitlines() if hint else message.splitlines())
    click.echo(f"edgespec: {line}", err=True)


def _help_hint(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"see {context.command_path} --help" if context else ""


def _end_unread() -> NoReturn:
    """As quietly as a program that SIGPIPE ends: what is still buffered has no reader."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(UNREAD)
