"""The learning rates of an arm: those around its base's own, or those that were given."""

import math
from dataclasses import replace
from typing import cast

from mars.comparison.arms import Study, StudyArm
from mars.comparison.settings import listed, values
from mars.config.errors import RefusedError
from mars.config.keys import nearest
from mars.config.toml import shown

AUTO = "auto"
"""What stands for the rates around a base's own on the command line."""

# Beyond these, rates are no search but a mistake; within, none of them overflows.
_MOST_RATES = 99
_LARGEST_FACTOR = 1000.0


def rates_around(rate: float, *, count: int, factor: float) -> tuple[float, ...]:
    """Return rates in a ratio of ``factor``, centred on one; an even count has one more below.

    Three are rate / factor, rate, rate * factor. Neighbours are written with six digits, so that
    a directory's name says all of them.
    """
    exponents = range(-(count // 2), (count + 1) // 2)
    return tuple(
        float(f"{rate * factor**exponent:g}") if exponent else rate for exponent in exponents
    )


def rates_of(arm: StudyArm, study: Study) -> tuple[float, ...]:
    """Return the learning rates of an arm in a study, the lowest first."""
    rates = _automatic(arm, study) if arm.rates is None else tuple(sorted(arm.rates))
    if not rates or not all(0 < rate < math.inf for rate in rates):
        said = f"learning rates of {shown(arm.label)} must be positive and finite"
        raise RefusedError(f"{said}, got {shown(rates)}")
    # Directories are named by these six digits.
    written = [f"{rate:g}" for rate in rates]
    for rate in written:
        if written.count(rate) > 1:
            raise RefusedError(
                f"learning rates of {shown(arm.label)} have {rate} twice; leave one out"
            )
    return rates


def with_rates(arms: tuple[StudyArm, ...], entries: tuple[str, ...]) -> tuple[StudyArm, ...]:
    """Return arms with the rates of ``--lr``: ``auto``, ``adamw=1e-3,2e-3``, or by a label.

    A plain ``auto`` is for all arms; an optimizer's rates are for all of its arms, but for those
    whose label has some too.
    """
    given: dict[str, tuple[float, ...] | None] = {}
    if AUTO in entries:
        given = dict.fromkeys((arm.optimizer for arm in arms), None)
    known = {name: None for arm in arms for name in (arm.optimizer, str(arm.label))}
    named = [_named(entry, known=tuple(known)) for entry in entries if entry != AUTO]
    for place, (name, rates) in enumerate(named):
        if name in dict(named[:place]):
            raise RefusedError(f"--lr {shown(name)} is given twice; write all its rates in one")
        given[name] = rates
    chosen = []
    for arm in arms:
        rates = given.get(arm.optimizer, arm.rates)
        chosen.append(replace(arm, rates=given.get(str(arm.label), rates)))
    return tuple(chosen)


def _named(entry: str, *, known: tuple[str, ...]) -> tuple[str, tuple[float, ...] | None]:
    """Return whose rates an entry of ``--lr`` gives, and which; None is auto."""
    name, equals, text = (part.strip() for part in entry.rpartition("="))
    if not name or not equals:
        raise RefusedError(f"--lr {shown(entry)} names no optimizer; write adamw=1e-3,2e-3")
    if name not in known:
        close = nearest(name, known)
        hint = f"did you mean {shown(close)}?" if close else f"there are {listed(known)}"
        raise RefusedError(f"--lr {shown(name)} is no optimizer or arm of this comparison; {hint}")
    if text == AUTO:
        return name, None
    # The key takes numbers alone.
    return name, cast(tuple[float, ...], values("optimizer.lr", text, option=f"--lr {name}"))


def _automatic(arm: StudyArm, study: Study) -> tuple[float, ...]:
    if not 1 <= study.rate_count <= _MOST_RATES:
        said = f"the number of automatic rates (--rates) must lie between 1 and {_MOST_RATES}"
        raise RefusedError(f"{said}, got {study.rate_count}")
    if not 1 < study.rate_factor <= _LARGEST_FACTOR:
        said = "the factor between automatic rates (--rate-factor) must be above 1"
        raise RefusedError(f"{said}, at most {_LARGEST_FACTOR:g}; got {study.rate_factor:g}")
    own = study.base.rate(arm.optimizer)
    if own is None:
        raise RefusedError(
            f"{shown(study.base.name)} has no learning rate for {arm.optimizer}; give it some "
            f"with --lr {arm.optimizer}=V,V, or as its rates in a study"
        )
    return rates_around(own, count=study.rate_count, factor=study.rate_factor)
