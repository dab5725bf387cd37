"""How a command ends: silently, or with one line on stderr and an exit code.

2: it was used wrongly; 1: it failed, or (silently) nobody reads its output any more; 130: interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

import click

from edgespec.errors import EdgespecError, UsageError
from edgespec.terminal.notes import in_words, nobody_reads
from edgespec.visible import one_line, visible

FAILED, USED_WRONGLY, INTERRUPTED = 1, 2, 130

_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())
"""shows the help; click before 8.2 has no such error and does so by itself"""


class Group(click.Group):
    """The top command; every error of any command passes here."""

    def main(self, *args: Any, **options: Any) -> Any:
        if not options.get("standalone_mode", True):
            return super().main(*args, **options)
        try:
            # Words are text: on Windows click would take a prompt for a pattern of file names.
            given = {**options, "standalone_mode": False, "windows_expand_args": False}
            code = super().main(*args, **given)
            sys.stdout.flush()
        except click.ClickException as error:
            if isinstance(error, _NO_ARGUMENTS):
                error.show()
                sys.exit(error.exit_code)
            _say(error.format_message(), _help_hint(error))
            sys.exit(error.exit_code)
        except click.Abort as abort:
            if isinstance(abort.__cause__ or abort.__context__, KeyboardInterrupt):  # at a question
                sys.exit(INTERRUPTED)
            _say("aborted")
            sys.exit(FAILED)
        except OSError as error:  # of --help and --version, and of what was still to be written
            if not nobody_reads(error):
                _say(in_words(error))
            _drop_unwritten()
            sys.exit(FAILED)
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise  # click knows what to do
        except EdgespecError as error:
            if ctx.params.get("debug"):
                _show_traceback()
            _say(self._with_option(ctx, str(error)))
            sys.exit(USED_WRONGLY if isinstance(error, UsageError) else FAILED)
        except (OSError, MemoryError) as error:
            if nobody_reads(error):
                raise  # main ends silently
            if ctx.params.get("debug"):
                _show_traceback()
            _say(in_words(error))
            _drop_unwritten()
            sys.exit(FAILED)
        except Exception as error:
            if ctx.params.get("debug"):
                _show_traceback()
            hint = "" if ctx.params.get("debug") else "to see where, run: edgespec --debug …"
            _say(f"this is a bug: {type(error).__name__}: {error}", hint)
            sys.exit(FAILED)

    def _with_option(self, ctx: click.Context, message: str) -> str:
        """Where a message begins with a name that only Python has, as json_schema, the option's instead."""
        name, blank, rest = message.partition(" ")
        command = self.get_command(ctx, ctx.invoked_subcommand or "")
        options = {p.name: p.opts[0] for p in (command.params if command else ()) if "_" in (p.name or "")}
        return options.get(name, name) + blank + rest


def _say(message: str, hint: str = "") -> None:
    click.echo(f"edgespec: {one_line(f'{message} ({hint})' if hint else message)}", err=True)


def _drop_unwritten() -> None:
    """What stdout did not take is not tried again when Python ends, which would tell of it in its own words
    and end with another code."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_traceback() -> None:
    click.echo(visible(traceback.format_exc()), err=True, nl=False)


def _help_hint(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    return f"see {context.command_path} --help" if context else ""
