"""The option --switch of commands that start switches: more options of `iswitch switch`."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from iswitch.lab.options import option_words, refuse
from iswitch.outside import UsageError

from . import switch

ANY = "--switch=--memory=4"  # an example
KINDS = "the kind of switch NAME, or of all: iswitch, or bmv2, the P4 program (docs/p4.md; not in "
KINDS += "loopback; default: iswitch); or "
OF_NETWORK = "is set for each switch of a network"
INSTEAD = {  # of options that the network sets
    "capture": "iswitch run --capture DIR and iswitch record do it at all switches",
    "json": "the command has a --json of its own",
    "listen": "leave it out",
    "parent": "--topology says which switch is above which",
    "ports": "--topology says what is linked",
    "watch": "`iswitch top` shows them",
    "world": "--world is of the whole network",
}


def add_switches(parser: argparse.ArgumentParser, kinds: bool) -> None:
    """Add the option; `kinds`: its value may also be the kind of a switch."""
    parser.add_argument(
        "--switch",
        action="append",
        default=[],
        type=switch_text if kinds else switch_options,
        metavar="[NAME=]KIND|OPTIONS" if kinds else "OPTIONS",
        help=f"{KINDS * kinds}more options of iswitch switch, for all switches, such as {ANY}; may "
        "be repeated",
    )


def switch_text(text: str) -> str:
    """Check a value if it is options; kinds are checked with the topology."""
    return switch_options(text) if text.startswith("-") else text


def switch_options(text: str) -> str:
    """Check that a value is options of `iswitch switch`.

    Raises:
        UsageError: as of `read_options`.
    """
    read_options([text])
    return text


def check_switches(texts: Sequence[str]) -> None:
    """Refuse options that contradict each other.

    Raises:
        UsageError: two of them do.
    """
    if options := [text for text in texts if text.startswith("-")]:
        _, found = read_options(options)
        switch.settings(found).check_slots()


def read_options(texts: Sequence[str]) -> tuple[list[str], argparse.Namespace]:
    """Read the options of `iswitch switch` that values of --switch name.

    Returns:
        the words, each option apart from its value, and what they mean.

    Raises:
        UsageError: `iswitch switch` has no such options, their values are wrong, or the command
            that starts the switches sets them itself.
    """
    parser = argparse.ArgumentParser(exit_on_error=False, add_help=False)
    switch.configure(parser)
    text = " ".join(texts)
    try:
        found, unknown = parser.parse_known_args(shlex.split(text))
    except (argparse.ArgumentError, ValueError) as error:
        raise UsageError(f"--switch: {error}") from None
    if {"-h", "--help"} & {*unknown}:
        raise UsageError("--switch: `iswitch switch --help` lists its options; name one of them")
    if unknown:
        raise UsageError(f"--switch: iswitch switch has no {unknown[0]}; see its --help")
    refuse(found, {name: parser.get_default(name) for name in INSTEAD}, OF_NETWORK, INSTEAD)
    return option_words(text), found


def takes_options(metavar: object) -> bool:
    """Return whether a command's --switch with this metavar is the one here, and not an address."""
    return str(metavar).endswith("OPTIONS")


def meant(words: Sequence[str], metavar: object) -> str:
    """Say how switches are given an option that the command does not have; "": it is not theirs.

    Args:
        words: the option, and the word behind it.
        metavar: that of the command's --switch.
    """
    parser = argparse.ArgumentParser(add_help=False)
    switch.configure(parser)
    name, equals, _ = words[0].partition("=")
    actions = [action for action in parser._actions if name in action.option_strings]
    if not (actions and takes_options(metavar)) or actions[0].dest in INSTEAD:
        return ""
    value = words[1:2] if actions[0].nargs != 0 and not equals else ()
    return f"; switches have it: --switch={'='.join([words[0], *value])}"
