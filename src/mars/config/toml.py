"""TOML as this room needs it: reading that refuses in one line, and writing of single values."""

import re
import tomllib
from pathlib import Path

from mars.config.errors import RefusedError

# What tomllib raises beside its own error: integers of thousands of digits, arrays in arrays in ...
_UNREADABLE = (ValueError, RecursionError)


def read_text(path: Path) -> str:
    """Return the text of a file, or refuse what is no readable UTF-8 file."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        problem = "there is no such file; mars train --list shows the presets"
    except IsADirectoryError:
        problem = "this is a directory; name a TOML file in it"
    except UnicodeDecodeError as error:
        problem = f"not UTF-8 text at byte {error.start}; save it as UTF-8"
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        problem = f"it cannot be read ({reason}); choose another file"
    raise RefusedError(f"{one_line(str(path))}: {problem}")


def parse(text: str, *, source: str) -> dict[str, object]:
    """Return the tables of a TOML text, or refuse it with its source and line."""
    try:
        return tomllib.loads(text)
    except _UNREADABLE as error:
        known = isinstance(error, tomllib.TOMLDecodeError)
        reason = str(error) if known else "a value is too long or too deeply nested"
    where = re.search(r"^(.*) \(at (?:line (\d+), column (\d+)|end of document)\)$", reason)
    if where is None:
        raise RefusedError(f"{source} is not valid TOML: {reason}")
    said, line, column = where.groups()
    place = f"line {line}, column {column}" if line else "at its end"
    raise RefusedError(f"{source}, {place}: not valid TOML: {said[:1].lower()}{said[1:]}")


def parse_value(text: str) -> object:
    """Return the value that a text is in TOML, or the text itself if it is none."""
    try:
        tables = tomllib.loads(f"value = {text}")
    except _UNREADABLE:
        return text
    return tables["value"] if len(tables) == 1 else text


def as_toml(value: object) -> str:
    """Return a value as TOML writes it, in one line."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            quoted = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'"{one_line(quoted)}"'
        case list() | tuple():
            return f"[{', '.join(as_toml(each) for each in value)}]"
        case dict():
            pairs = (f"{as_toml(key)} = {as_toml(each)}" for key, each in value.items())
            return f"{{{', '.join(pairs)}}}"
        case int() if value.bit_length() > 64:
            return hex(value)  # Python refuses to write the digits of very large ones
        case _:  # numbers and times, which Python writes as TOML does
            return str(value)


def shown(value: object) -> str:
    """Return a value for a message: as TOML, cut where it is long."""
    try:
        text = as_toml(value)
    except RecursionError:
        return "a deeply nested value"
    return text if len(text) <= 80 else f"{text[:76]} ..."


def one_line(text: str) -> str:
    """Return a text with TOML's escapes in place of line breaks and other unprintables."""
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
