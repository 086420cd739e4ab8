"""A wrong command line is one line on stderr, `argument: got X; needed Y`, and exit status 2.

`OneLine` is the group of commands that does so; `whole` reads an option that is an integer. `of_library` turns what
the library refuses into such a line, with the option's name in place of the parameter's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cookbook.cli.console import say
from cookbook.recipe.catalog import NotLoaded

__all__ = ["DTYPES", "Json", "OneLine", "of_library", "whole"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else on stdout.")]
DTYPES = {"bf16": "bfloat16", "f16": "float16", "fp16": "float16", "fp32": "float32"}  # torch's names

WRONG, INTERRUPTED = 2, 130  # exit statuses; the second one is a shell's for Ctrl-C
GROUPS = {  # of the commands in `cookbook --help`
    "Learn": ("list", "show", "exercise", "doctor"),
    "Check and time": ("check", "bench", "calibrate"),
    "Layouts": ("atom", "banks", "draw", "swizzle"),
    "Ship": ("copy", "build", "cache"),
    "Maintain": ("results", "new"),
}
LONGEST_WORD = 100
LONGEST = 400  # characters of a line


class OneLine(TyperGroup):
    """The commands, whose usage errors are one line each, and whose list says of each what it does at any width."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, of the whole program in GROUPS; none of their lines is cut."""
        each = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        groups = GROUPS if self.name == "cookbook" else {"Commands": tuple(each)}
        for title, names in groups.items():
            with formatter.section(title):
                found = [(name, command) for name in names if (command := each.get(name))]
                formatter.write_dl([(name, command.get_short_help_str(LONGEST)) for name, command in found])

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        if not standalone_mode:
            return super().main(*args, standalone_mode=False, **extra)
        try:
            status = super().main(*args, standalone_mode=False, **extra)
        except typer.Abort:
            say("Aborted.")
            sys.exit(INTERRUPTED)
        except NotLoaded as error:
            say(str(error))  # a line, with a path that must stay whole
            sys.exit(WRONG)
        except LookupError as error:  # a recipe that there is not; a KeyError is no message
            if type(error) in (LookupError, KeyError, IndexError):
                raise
            say(_shortened("NAME" + str(error).removeprefix("name")))
            sys.exit(WRONG)
        except Exception as raised:
            error: Any = raised
            if not hasattr(error, "format_message"):  # what is no error of click's is one of ours
                raise
            if "NoArgs" in type(error).__name__:
                error.show()  # the help
            else:
                say(_line(error))
            sys.exit(error.exit_code)
        sys.exit(status if isinstance(status, int) else 0)


def whole(text: str | int) -> int:
    """The integer that an option says; `parser` of a typer option or argument."""
    if isinstance(text, int):  # a default
        return text
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        raise typer.BadParameter(f"got {_shortened(text)!r}; needed an integer of at most 20 digits")
    return int(text)


@contextmanager
def of_library(options: Mapping[str, str]) -> Iterator[None]:
    """Turn what the library refuses into a wrong command line.

    Args:
        options: the option that gives each parameter of the library, such as {"element_bits": "--bits"}.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        name, colon, rest = str(error).partition(":")
        raise typer.BadParameter(options.get(name, name) + colon + rest) from None


def _line(error: Any) -> str:
    """One line that says what is wrong."""
    param = getattr(error, "param", None)
    message = str(getattr(error, "message", "") or error.format_message()).strip()
    kind = type(error).__name__
    if kind == "MissingParameter" and param is not None:
        return f"{_name(param)}: got none; needed {_wanted(param)}"
    if kind == "NoSuchOption":
        near = getattr(error, "possibilities", None)
        hint = f" such as {' or '.join(sorted(near))}" if near else " of this command (see --help)"
        return f"{_shortened(error.option_name)}: got an unknown option; needed one{hint}"
    if kind == "BadOptionUsage":
        return f"{error.option_name}: got no value; needed one (see --help)"
    if said := re.fullmatch(r"No such command (.*?)\.\s*(.*)", message, re.DOTALL):
        if (name := said[1].strip("'")) in [each for names in GROUPS.values() for each in names]:
            return f"{name}: got an installed package; needed a checkout of the repository, which has this command"
        near = f": {_lowered(said[2])}" if said[2] else ""
        return f"COMMAND: got {_shortened(said[1])}; needed one that --help lists{near}"
    if said := re.match(r"Got unexpected extra argument\S* \((.*)\)", message, re.DOTALL):
        return f"arguments: got {_shortened(said[1])!r} more; needed those that --help lists"
    if param is not None and not re.match(r"[-\w., ]+: ", message):
        message = f"{_name(param)}: {message}"
    return _shortened(message)


def _name(param: Any) -> str:
    """The option as it is written, or what stands for an argument in the help."""
    written = [name for name in param.opts if name.startswith("--")]
    return written[0] if written else (param.metavar or param.name).strip("[].")


def _wanted(param: Any) -> str:
    """What stands for an option's value, and what the help says of it."""
    value = param.metavar if param.metavar and param.opts[0].startswith("-") else ""
    return ", ".join(filter(None, [value, _lowered(param.help or "").rstrip(".")])) or "a value"


def _lowered(sentence: str) -> str:
    """A sentence that goes on within a line: its first word begins small, if it is no name."""
    return sentence[:1].lower() + sentence[1:] if re.match(r"A |[A-Z][a-z]", sentence) else sentence


def _shortened(text: str) -> str:
    """On one line, no word of it longer than `LONGEST_WORD` characters."""
    short = " ".join(text.split())
    short = re.sub(rf"[^\s;]{{{LONGEST_WORD},}}", lambda word: word[0][: LONGEST_WORD - 3] + "...", short)
    return short if len(short) <= LONGEST else short[: LONGEST - 3] + "..."
