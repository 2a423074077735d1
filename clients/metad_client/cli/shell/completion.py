"""``metadctl completion``: a script with which bash or zsh completes the words of ``metadctl``.

It is made of the whole parser of the command line, once: a shell that ran ``metadctl`` at each press of TAB would take
half a second. zsh runs the same script by its ``bashcompinit``.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Final, NamedTuple

from ..grammar import Arguments, Commands

SHELLS: Final = ("bash", "zsh")
FILES: Final = "<files>"
"""In place of the values of an argument: whatever files there are."""


class Words(NamedTuple):
    """What may follow a command, of which the words are ``path``."""

    path: tuple[str, ...]
    commands: list[str]
    options: list[str]
    takes: list[str]
    """Those of the options that a value follows."""
    values: dict[str, list[str]]
    """What that may be, where that is known."""
    places: list[list[str]]
    """The same of each argument that is no option, in order. The last one may be repeated."""
    repeats: bool


def add(commands: Commands, grammar: Callable[[], argparse.ArgumentParser], paths: Collection[str]) -> None:
    """Add the command. ``grammar`` makes the parser of the whole command line, ``paths`` names its arguments that are
    files."""

    def offline(a: Arguments) -> int:
        sys.stdout.write(script(a.shell, grammar(), paths))
        return 0

    said = "a script for your shell: `source <(metadctl completion bash)` in its start file"
    command = commands.offline("completion", said, offline)
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash or zsh")


def words_of(parser: argparse.ArgumentParser, paths: Collection[str], path: tuple[str, ...] = ()) -> Iterator[Words]:
    """What may follow each command of a parser, the command itself first."""
    found = Words(path, [], [], [], {}, [], repeats=False)
    inner: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            inner = dict(action.choices)
            found.commands.extend(inner)
            continue
        values = [FILES] if action.dest in paths else [str(one) for one in action.choices or ()]
        if not action.option_strings:
            found.places.append(values)
            found = found._replace(repeats=action.nargs in ("*", "+"))
            continue
        found.options.extend(action.option_strings)
        if action.nargs != 0:
            found.takes.extend(action.option_strings)
            if values:
                found.values.update(dict.fromkeys(action.option_strings, values))
    yield found
    for name, each in inner.items():
        yield from words_of(each, paths, (*path, name))


def script(shell: str, parser: argparse.ArgumentParser, paths: Collection[str]) -> str:
    """The script for a shell."""
    known = [*words_of(parser, paths)]
    # Nearly all of the script would be the options that most commands have.
    common = [option for option in known[0].options if sum(option in one.options for one in known) > len(known) // 2]
    text = _FUNCTION.replace("@CASES@", "".join(_case(found, common) for found in known))
    values = [
        f"    {name}) values={shlex.quote(' '.join(of))} ;;\n" for name, of in known[0].values.items() if name in common
    ]
    text = text.replace("@VALUES@", "".join(values))
    text = text.replace("@COMMON@", " ".join(common))
    text = text.replace("@TAKES@", " ".join(option for option in common if option in known[0].takes))
    return f"# Made by `metadctl completion {shell}`.\n{_ZSH if shell == 'zsh' else ''}{text}"


def _case(found: Words, common: Collection[str]) -> str:
    """What the shell is to know of a command."""
    places = [*found.places, []] if not found.repeats else found.places
    has_common = {*common} <= {*found.options}
    own = [option for option in found.options if not has_common or option not in common]
    takes = [option for option in found.takes if option in own]
    lines = [f"commands={shlex.quote(' '.join(found.commands))}"] if found.commands else []
    if own or not has_common:
        lines += [f"options={'$common' if has_common else ''}{shlex.quote(' '.join(['', *own]))}"]
    if takes or not has_common:
        lines += [f"takes={'$common_takes' if has_common else ''}{shlex.quote(' '.join(['', *takes, '']))}"]
    if values := {name: of for name, of in found.values.items() if name in own}:
        each = "".join(f"{name}) values={shlex.quote(' '.join(of))} ;; " for name, of in values.items())
        lines.append(f'case "$2" in {each}esac')
    if any(places):
        each = "".join(
            f"{'*' if found.repeats and at == len(places) - 1 else at}) place={shlex.quote(' '.join(of))} ;; "
            for at, of in enumerate(places)
        )
        lines.append(f'case "$3" in {each}esac')
    return f"    {shlex.quote(' '.join(found.path))}) {'; '.join(lines) or ':'} ;;\n"


_ZSH: Final = "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n"
_FUNCTION: Final = """\
_metadctl_known() {  # $1: the command, $2: an option, $3: how many arguments stand before; sets what may follow
  local common="@COMMON@" common_takes=" @TAKES@ "
  commands= options="$common" takes="$common_takes" values= place=
  case "$2" in
@VALUES@  esac
  case "$1" in
@CASES@  esac
}
_metadctl() {
  local commands options takes values place at word skipped= known= count=0
  local current="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}"
  COMPREPLY=()
  _metadctl_known "" "" 0
  for ((at = 1; at < COMP_CWORD; at++)); do
    word="${COMP_WORDS[at]}"
    if [ -n "$skipped" ]; then skipped=; continue; fi
    case "$word" in
      -*) case "$takes" in *" $word "*) skipped=1 ;; esac ;;
      *)
        case " $commands " in
          *" $word "*) known="${known:+$known }$word"; count=0; _metadctl_known "$known" "" 0 ;;
          *) count=$((count + 1)) ;;
        esac ;;
    esac
  done
  if [ -n "$skipped" ]; then
    _metadctl_known "$known" "$before" 0
    word="$values"
  elif [ "${current#-}" != "$current" ]; then
    word="$options"
  else
    _metadctl_known "$known" "" "$count"
    if [ "$count" -gt 0 ]; then commands=; fi
    word="$commands $place"
  fi
  case "$word" in
    *"<files>"*) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$current")) ;;
    *) COMPREPLY=($(compgen -W "$word" -- "$current")) ;;
  esac
}
complete -F _metadctl metadctl
"""
