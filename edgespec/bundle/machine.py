"""The machine that a bundle is for: what pip is to choose wheels for, and what the start script checks."""

from __future__ import annotations

import platform
import re
import sys
from dataclasses import dataclass

from packaging.markers import default_environment

from edgespec.errors import UsageError

_PYTHON = re.compile(r"3\.(1\d|[2-9]\d)")
_MANYLINUX = re.compile(r"manylinux_2_(\d+)_(\w+)")
_MACOS = re.compile(r"macosx_\d+_\d+_(x86_64|arm64)")
_OLDEST_GLIBC = 17
"""2.17, that of manylinux2014: wheels for older ones have become rare"""


@dataclass(frozen=True)
class Machine:
    """Where the bundle will run."""

    tag: str | None
    """of the platform, as wheels have it; None: this machine, its processor and libraries included"""
    python: str
    """3.11"""
    system: str
    """as `uname -s` says: Linux, Darwin"""
    processor: str
    """as `uname -m` says: x86_64, aarch64, arm64"""

    @property
    def here(self) -> bool:
        """Whether what is compiled here runs there."""
        return self.tag is None

    @property
    def as_pip_does(self) -> bool:
        """Whether pip, run here, evaluates conditions of requirements as they are there."""
        return self.here and self.python == this_python()

    def pip_options(self) -> list[str]:
        """What makes pip choose wheels for it."""
        if self.as_pip_does:
            return []
        options = ["--python-version", self.python, "--implementation", "cp"]
        for tag in self._tags():
            options += ["--platform", tag]
        return options

    def environment(self) -> dict[str, str]:
        """What conditions of requirements, such as `python_version < "3.11"`, are evaluated in."""
        here = {name: str(value) for name, value in default_environment().items()}
        there = {
            "python_version": self.python,
            "python_full_version": here["python_full_version"] if self.as_pip_does else f"{self.python}.0",
            "platform_machine": self.processor,
            "platform_system": self.system,
            "sys_platform": self.system.lower(),
            "os_name": "posix",
        }
        return here | there

    def _tags(self) -> list[str]:
        """pip takes a tag literally where it does not know the older ones that it includes."""
        if self.tag is None:
            return []
        if match := _MANYLINUX.fullmatch(self.tag):
            newest, processor = int(match[1]), match[2]
            older = [f"manylinux_2_{n}_{processor}" for n in range(newest, _OLDEST_GLIBC - 1, -1)]
            return [*older, f"manylinux2014_{processor}", f"linux_{processor}"]
        return [self.tag]

    def __str__(self) -> str:
        where = f"{self.system} on {self.processor}" if self.tag is None else self.tag
        return f"Python {self.python}, {where}"


def this_python() -> str:
    """3.11"""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def machine(tag: str | None, python: str | None) -> Machine:
    """The machine that a user means. Raises UsageError for one that bundles are not made for."""
    python = python or this_python()
    if not _PYTHON.fullmatch(python):
        raise UsageError(f"--python {python} is not a version that edgespec runs on, such as 3.11")
    if tag is None:
        if platform.system() not in ("Linux", "Darwin"):
            raise UsageError(
                f"bundles are for Linux and macOS; {platform.system()} has no shell to start them"
            )
        return Machine(None, python, platform.system(), platform.machine())
    if match := _MANYLINUX.fullmatch(tag):
        if int(match[1]) < _OLDEST_GLIBC:
            raise UsageError(f"--platform {tag}: glibc 2.{_OLDEST_GLIBC} is the oldest there are wheels for")
        return Machine(tag, python, "Linux", match[2])
    if match := _MACOS.fullmatch(tag):
        return Machine(tag, python, "Darwin", match[1])
    raise UsageError(
        f"--platform {tag} is not of the form manylinux_2_31_aarch64 (glibc 2.31 or newer, which "
        "`ldd --version` tells) or macosx_13_0_arm64"
    )
