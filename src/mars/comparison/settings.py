"""Keys of a run as a comparison sets and varies them, and their values in words."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from mars.config.errors import RefusedError
from mars.config.keys import KEYS, Value
from mars.config.load import override
from mars.config.schema import Run
from mars.config.toml import shown
from mars.report.wording import value_text

# Keys that a comparison gives each run itself, and where they come from.
_GIVEN = {
    "seed": "comes from --seeds, or seeds in a study",
    "optimizer.lr": "comes from --lr, or an arm's rates in a study",
    "optimizer.name": "comes from --optimizers, or an arm's optimizer in a study",
    "name": "is made of the arm, the learning rate and the seed of each run",
    "description": "is that of the comparison",
    "training.stop_diverged": "is true in every comparison",
}


def check_settable(key: str) -> None:
    """Refuse a key that can be neither set nor varied, as the comparison gives it."""
    if key in _GIVEN:
        raise RefusedError(f"{key} cannot be set or varied: it {_GIVEN[key]}")


def check_varied(key: str, values: Sequence[Value]) -> None:
    """Refuse to vary a key over no values, or over one of them twice."""
    check_settable(key)
    if not values:
        raise RefusedError(f"{key} is varied over no values; give at least one")
    for value in values:
        if values.count(value) > 1:
            raise RefusedError(f"{key} is varied over {in_words(value)} twice; leave one out")


def assignment(text: str, *, option: str) -> tuple[str, Value]:
    """Return the full key and the value of ``gamma=0.025``; ``option`` is who wrote it."""
    name, equals, _ = (part.strip() for part in text.partition("="))
    if not name or not equals:
        raise RefusedError(f"{option} {shown(text)} sets nothing; write it as training.steps=300")
    try:
        run = override(Run(), [text])
    except RefusedError as error:
        raise RefusedError(f"{option}: {error}") from None
    # `override` took the name: it is a key's, or the last part of that key alone.
    key = name if name in KEYS else next(k.name for k in KEYS.values() if k.last_part == name)
    return key, attrgetter(key)(run)


def values(key: str, text: str, *, option: str, separator: str = ",") -> tuple[Value, ...]:
    """Return the values of a key that a text lists."""
    return tuple(assignment(f"{key}={each}", option=option)[1] for each in text.split(separator))


def listed(names: Iterable[str]) -> str:
    """Return names for a message, cut where they are many."""
    text = "; ".join(names)
    return text if len(text) <= 160 else f"{text[:156]} ..."


def in_words(value: Value) -> str:
    """Return a value as a label has it: ``0.025``, ``0.9/0.95``, ``true``, ``none``."""
    if isinstance(value, str):
        return shown(value)[1:-1]
    if isinstance(value, tuple):
        return "/".join(in_words(each) for each in value)
    return value_text(value)
