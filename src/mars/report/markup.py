"""HTML that is escaped by construction: a plain string is text, only `Markup` is markup."""

import base64
import hashlib
import html
import json
from collections.abc import Iterable

_VOID = frozenset({"br", "col", "input", "link", "meta"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def tag(element: str, *children: str | None, **attributes: str | bool | None) -> Markup:
    """Return an element; children that are not `Markup` are escaped, None is left out.

    Of an attribute's name ``class_`` means ``class`` and ``aria_label`` means ``aria-label``. True
    is an attribute without value, False and None are no attribute.
    """
    opened = f"<{element}{''.join(_attribute(*each) for each in attributes.items())}>"
    if element in _VOID:
        return Markup(opened)
    return Markup(f"{opened}{join(children)}</{element}>")


def join(children: Iterable[str | None]) -> Markup:
    """Return children one after the other, escaped unless they are `Markup`."""
    return Markup("".join(_escaped(child) for child in children if child is not None))


def data(name: str, value: object) -> Markup:
    """Return JSON that scripts find in the page by its id; it cannot end its element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    text = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(f'<script type="application/json" id="{html.escape(name)}">{text}</script>')


def script(text: str) -> Markup:
    """Return a script of ours; only its digest lets a browser run it."""
    return Markup(f"<script>{_script_text(text)}</script>")


def script_digest(text: str) -> str:
    """Return what a content security policy calls the script that `script` makes."""
    digest = hashlib.sha256(_script_text(text).encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _script_text(text: str) -> str:
    # Inside a string or a regular expression, where alone it can occur, the slash may be escaped.
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _attribute(name: str, value: str | bool | None) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(value)}"'


def _escaped(child: str) -> str:
    return child if isinstance(child, Markup) else html.escape(child, quote=False)
