"""One vocabulary on the command line: what older options are called now, and the library's words as options."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["current", "in_options"]

_OLDER = {
    "explain": {"--labels": "--names"},
    "compare": {"--labels": "--names", "--methods": "--method"},
    "doctor": {"--labels": "--names"},
    "score": {"--labels": "--truth", "--batch": "--batch-size"},
}

_OPTIONS = {
    "target": "--target",
    "against": "--against",
    "value": "--value",
    "effort": "--effort",
    "memory": "--memory",
    "batch_size": "--batch-size",
    "batch": "--batch-size",
    "seed": "--seed",
    "labels": "--names",
    "prompts": "--prompt",
    "img_size": "--img-size",
    "num_classes": "--num-classes",
    "checkpoint": "--checkpoint",
    "device": "--device",
    "dtype": "--dtype",
    "noise": "--noise",
    "size": "--size",
    "overwrite": "--overwrite",
    "resume": "--resume",
    "pretrained": "--pretrained",
}
"""By the name of an argument in Python. ``classes`` is not here: methods have a parameter of that name."""

_NUMBER = r"[+-]?(?:[0-9]+(?:\.[0-9]*)?(?:e[+-]?[0-9]+)?|inf|nan)"
_VALUE = rf"'[^']*'|\"[^\"]*\"|{_NUMBER}|None|True|False|N|FILE|\[…\]"
_ARGUMENT = re.compile(rf"(?<![\w./\\'\"=▸-])(?P<name>{'|'.join(_OPTIONS)})=(?P<value>{_VALUE})?(?=[,;:]?(?:\s|$))")


def current(arguments: Sequence[str]) -> list[str]:
    """Return a command line with older options as they are called now."""
    command = next((each for each in arguments if not each.startswith("-")), "")
    older, done = _OLDER.get(command, {}), list(arguments)
    for place, each in enumerate(done):
        if each == "--":
            break
        name, sign, rest = each.partition("=")
        done[place] = older.get(name, name) + sign + rest
    return done


def in_options(text: str, arguments: Sequence[str]) -> str:
    """Return a message of the library with options for the arguments that it names.

    Spellings, what stands in brackets or quotes, and whatever the user typed stay as they are.
    """
    if "▸" in text:
        return text
    typed = [each.partition("=")[2] if each.startswith("--") else each for each in arguments]

    def option(found: re.Match[str]) -> str:
        before = found.string[: found.start()]
        if before.count("(") > before.count(")") or any(found[0] in each for each in typed):
            return found[0]
        name, value = _OPTIONS[found["name"]], found["value"]
        if value == "False":
            return name.replace("--", "--no-", 1)
        return name if value in (None, "True", "[…]") else f"{name} {value}"

    return _ARGUMENT.sub(option, text.replace("true classes: give labels", "true classes: give --truth"))
