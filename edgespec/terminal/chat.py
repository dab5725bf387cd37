"""`edgespec chat`: turns and commands, until the user has had enough."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from edgespec.decoding.generation import Generation
from edgespec.errors import EdgespecError, ModelError, UsageError
from edgespec.hub.names import path_named
from edgespec.options import GenerateOptions
from edgespec.runtime import Runtime
from edgespec.terminal.answer import closing_remarks, follow, write_stdout
from edgespec.terminal.lines import Lines, lines
from edgespec.terminal.notes import PromptProgress, in_words, nobody_reads, note, policy_notes
from edgespec.terminal.opening import describe, open_pair
from edgespec.visible import one_line

_log = logging.getLogger("edgespec.terminal")

KEYS = (
    "Enter sends; Alt-Enter (or Esc, then Enter, or a backslash at the end of the line) starts a new line",
    "Ctrl-C stops an answer, or clears the line; Ctrl-D ends the chat",
)


def chat(
    pair: str | None,
    system: str | None,
    loading: Mapping[str, Any],
    generating: GenerateOptions,
    report: bool | None,
    explain_policy: bool = False,
) -> bool:
    """Converse until the lines end; False if they came from a pipe and one of them failed."""
    with open_pair(pair, loading, generating) as runtime:
        if not runtime.has_chat_template:
            raise ModelError(
                f"{runtime.target.name} carries no chat template; give one with --chat-template FILE, or "
                "complete text with: edgespec run"
            )
        note(f"{describe(runtime)}, {runtime.target.n_ctx} tokens of context; /help says what you can do")
        if explain_policy:
            generating = {**generating, "on_round": policy_notes(runtime.policy)}
        source = lines()
        conversation = Conversation(runtime, system, generating, report)
        conversation.converse(source)
        return source.typed or not conversation.failed


class Command(NamedTuple):
    """What a line that begins with / does."""

    argument: str
    help: str
    action: Callable[[str], None]


class Conversation:
    """Takes lines, writes answers to stdout and everything else to stderr."""

    def __init__(
        self, runtime: Runtime, system: str | None, generating: GenerateOptions, report: bool | None
    ) -> None:
        self._runtime = runtime
        self._session = runtime.chat(system)
        self._generating = generating
        self._report = report
        self._last: Generation | None = None
        self._own_files: set[Path] = set()
        self._over = self._stopped = False
        self.failed = False
        """a turn or a command was refused or went wrong"""
        self._commands = {
            "/help": Command("", "this list", self._help),
            "/reset": Command("", "forget the turns so far; the system message stays", self._reset),
            "/system": Command("[TEXT]", "show the system message, or set it; - removes it", self._system),
            "/retry": Command("", "answer the last turn anew", self._retry),
            "/save": Command("FILE", "write the conversation to a file", self._save),
            "/load": Command("FILE", "go on with a saved conversation", self._load),
            "/stats": Command("", "how fast the last answer was, how full the context is", self._stats),
            "/quit": Command("", "end the chat", self._quit),
        }

    def converse(self, source: Lines) -> None:
        """Take entries until they end or the user quits. What goes wrong is said, and the chat goes on.

        Raises KeyboardInterrupt where an answer was stopped and nobody is there to type on: a pipe would go
        on by itself.
        """
        while not self._over and (entry := source.read()) is not None:
            self.take(entry)
            if self._stopped and not source.typed:
                raise KeyboardInterrupt

    def take(self, entry: str) -> None:
        """One entry: a command or a turn."""
        try:
            self._take(entry)
        except EdgespecError as error:
            self.failed = True
            note(one_line(str(error)))
        except (OSError, MemoryError) as error:
            if nobody_reads(error):  # the answers
                raise
            self._went_wrong(in_words(error))
        except Exception as error:
            self._went_wrong(f"this is a bug: {one_line(f'{type(error).__name__}: {error}')}")
        except KeyboardInterrupt:  # outside the models' work, which `follow` protects
            self._stopped = True
            note("interrupted")

    def _went_wrong(self, what: str) -> None:
        _log.debug("", exc_info=True)
        self.failed = True
        note(f"{what}; the conversation is kept (/save FILE writes it to a file)")

    def _take(self, entry: str) -> None:
        if entry.startswith("/"):
            name, _, argument = entry.partition(" ")
            self._command(name.strip(), argument.strip())
        elif entry.strip():
            self._answer(lambda options: self._session.stream(entry.strip(), **options))

    def _command(self, name: str, argument: str) -> None:
        command = self._commands.get(name)
        if command is None:
            raise UsageError(
                f"there is no {name}; there are {' '.join(self._commands)}. To say something that begins "
                "with /, put a space before it"
            )
        if command.argument and not argument and not command.argument.startswith("["):
            raise UsageError(f"{name} needs an argument: {name} {command.argument}")
        if argument and not command.argument:
            raise UsageError(f"{name} takes no argument")
        command.action(argument)

    def _answer(self, start: Callable[[GenerateOptions], Generation]) -> None:
        progress = PromptProgress()
        left_out = self._session.left_out
        options: GenerateOptions = {**self._generating, "on_prompt": progress}
        self._last = answer = start(options)
        if self._session.left_out > left_out:
            note(
                f"the context is full: the model no longer sees the oldest {self._session.left_out} messages "
                "(--ctx gives more room, /reset starts anew)"
            )
        follow(answer, progress, write_stdout, insistent=False)
        if not answer.text.endswith("\n"):
            write_stdout("\n")
        if answer.finish_reason == "cancelled":
            self._stopped = True
            note("stopped")
        closing_remarks(answer, self._runtime.target.n_ctx, self._report, "raise --ctx, or /reset")

    def _help(self, _: str) -> None:
        for name, command in self._commands.items():
            note(f"{name + ' ' + command.argument:<15} {command.help}")
        for line in KEYS:
            note(line)

    def _reset(self, _: str) -> None:
        self._session.reset()
        note("the turns are forgotten")

    def _system(self, text: str) -> None:
        if text:
            self._session.system = None if text == "-" else text
        note(f"system message: {self._session.system or 'none'}")

    def _retry(self, _: str) -> None:
        if self._generating["temperature"] == 0 or self._generating["seed"] is not None:
            note("expect the same answer: others come with --temperature and without --seed")
        self._answer(lambda options: self._session.retry(**options))

    def _save(self, name: str) -> None:
        file = path_named(name)
        if file.exists() and file.resolve() not in self._own_files:
            raise UsageError(f"{file} exists already; choose another name")
        self._session.save(file)
        self._own_files.add(file.resolve())
        note(f"saved to {file}")

    def _load(self, name: str) -> None:
        file, before = path_named(name), self._session.system
        self._session.load(file)
        self._own_files.add(file.resolve())
        note(f"{len(self._session.messages)} messages loaded from {file}")
        if self._session.system != before:
            self._system("")

    def _stats(self, _: str) -> None:
        if self._last is not None:
            stats, n_ctx = self._last.stats, self._runtime.target.n_ctx
            note(f"last answer: {stats.line()}")
            used = stats.prompt_tokens + stats.tokens
            note(f"context: the last answer and its prompt took {used} of {n_ctx} tokens")
        unseen = self._session.left_out
        left_out = f", of which the model no longer sees {unseen}" if unseen else ""
        note(f"conversation: {len(self._session.messages)} messages{left_out}")

    def _quit(self, _: str) -> None:
        self._over = True
