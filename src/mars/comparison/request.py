"""From the words of a command line to the plan of a comparison.

What is compared is a preset, which stands for its siblings with other optimizers; a run's TOML
file; or a study, whose own seeds, rates and settings the command line may replace.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from mars.comparison import study as studies
from mars.comparison.arms import Study, StudyArm, expanded
from mars.comparison.base import Base
from mars.comparison.plan import Plan
from mars.comparison.planning import make_plan
from mars.comparison.rates import with_rates
from mars.comparison.settings import assignment, check_settable, check_varied, values
from mars.config import presets
from mars.config.check import OPTIONS
from mars.config.errors import RefusedError
from mars.config.keys import KEYS, Value, nearest
from mars.config.load import load_file
from mars.config.schema import OptimizerName
from mars.config.toml import shown

OPTIMIZERS = "mars-adamw,mars-m,adamw,muon"
"""What is compared where nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The options of ``mars compare`` that decide what runs, as they were written."""

    config: str | None
    optimizers: str | None = None
    lr: tuple[str, ...] = ()
    rates: int | None = None
    rate_factor: float | None = None
    seeds: str | None = None
    search_seeds: int | None = None
    vary: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    baseline: str | None = None


def resolve(request: Request, *, command: str) -> Plan:
    """Return the plan that a command line asks for, or refuse it before anything exists."""
    asked = expanded(_overridden(_asked(request), request))
    asked = replace(asked, arms=with_rates(asked.arms, request.lr))
    _check_automatic(asked, request)
    return make_plan(asked, command=command)


def _asked(request: Request) -> Study:
    """Return the study that is named, or one made of what is."""
    config = request.config
    if config is None:
        raise RefusedError(
            "name a preset, a study or a TOML file; mars compare --list shows the studies"
        )
    path = Path(config)
    is_file = path.suffix == ".toml" or path.is_file()
    if not (studies.is_study(path) if is_file else config in studies.names()):
        base = Base(name=path.stem, run=load_file(path)) if is_file else _presets(config)
        return _made(base, request)
    for option, given in (("--optimizers", request.optimizers), ("--vary", request.vary or None)):
        if given is not None:
            raise RefusedError(
                f"{option} has no meaning beside a study, whose arms are its own; "
                "name a preset, or write a study"
            )
    return studies.load_study(path) if is_file else studies.study(config)


def _presets(name: str) -> Base:
    known = {*presets.names(), *(presets.stem(each) for each in presets.names())}
    if name not in known:
        close = nearest(name, [*studies.names(), *sorted(known)])
        hint = f"did you mean {close}? " if close else ""
        raise RefusedError(
            f"unknown preset or study {shown(name)}; {hint}"
            "mars train --list and mars compare --list show all"
        )
    return Base(name=presets.stem(name))


def _made(base: Base, request: Request) -> Study:
    """Return a study of optimizers on a base, each with the varied keys that it has."""
    optimizers = _optimizers(OPTIMIZERS if request.optimizers is None else request.optimizers)
    varied: dict[str, tuple[Value, ...]] = {}
    for text in request.vary:
        key, found = _varied(text)
        if key in varied:
            raise RefusedError(f"--vary {key} is given twice; write all its values in one")
        if not any(_has(optimizer, key) for optimizer in optimizers):
            owners = ", ".join(name for name in OPTIONS if _has(name, key))
            raise RefusedError(
                f"--vary {key}: none of {', '.join(optimizers)} has it; it belongs to {owners}"
            )
        varied[key] = found
    arms = tuple(
        StudyArm(
            optimizer=optimizer,
            varied={key: found for key, found in varied.items() if _has(optimizer, key)},
        )
        for optimizer in optimizers
    )
    over = "".join(f"; {key} varied" for key in varied)
    description = f"{base.name} with {', '.join(optimizers)}{over}."
    return Study(name=base.name, base=base, description=description, arms=arms)


def _has(optimizer: OptimizerName, key: str) -> bool:
    section, _, option = key.rpartition(".")
    return section != "optimizer" or option in OPTIONS[optimizer]


def _optimizers(text: str) -> tuple[OptimizerName, ...]:
    read = values("optimizer.name", text, option="--optimizers")
    found = cast(tuple[OptimizerName, ...], read)  # the key takes nothing else
    for name in found:
        if found.count(name) > 1:
            raise RefusedError(f"--optimizers names {name} twice; --vary tries it in several ways")
    return found


def _varied(text: str) -> tuple[str, tuple[Value, ...]]:
    """Return the key and the values of ``gamma=0,0.025``."""
    name, equals, listed = (part.strip() for part in text.partition("="))
    if not name or not equals or not listed:
        raise RefusedError(f"--vary {shown(text)} varies nothing; write it as gamma=0,0.025")
    matches = [key for key in KEYS.values() if name in (key.name, key.last_part)]
    is_array = any(key.kind is tuple for key in matches)
    separator = ";" if is_array or ";" in listed else ","
    key, _ = assignment(f"{name}={listed.split(separator)[0]}", option="--vary")
    found = values(key, listed, option="--vary", separator=separator)
    check_varied(key, found)
    return key, found


def _overridden(study: Study, request: Request) -> Study:
    """Return a study with what the command line gives in place of its own."""
    settings = dict(assignment(each, option="--set") for each in request.settings)
    for key in settings:
        check_settable(key)
        if any(key in arm.settings or key in arm.varied for arm in study.arms):
            raise RefusedError(f"--set {key}: arms of this comparison differ in it; leave it out")
    study = replace(study, settings={**study.settings, **settings})
    if request.seeds is not None:
        seeds = cast(tuple[int, ...], values("seed", request.seeds, option="--seeds"))
        study = replace(study, seeds=seeds)
        if study.search_seeds is not None:
            # A study's search is not to outlast the seeds that are asked for.
            study = replace(study, search_seeds=min(study.search_seeds, len(study.seeds)))
    if request.search_seeds is not None:
        study = replace(study, search_seeds=request.search_seeds)
    if request.rates is not None:
        study = replace(study, rate_count=request.rates)
    if request.rate_factor is not None:
        study = replace(study, rate_factor=request.rate_factor)
    return study if request.baseline is None else replace(study, baseline=request.baseline)


def _check_automatic(study: Study, request: Request) -> None:
    """Refuse options of automatic rates that no arm has."""
    if any(arm.rates is None for arm in study.arms):
        return
    for option, given in (("--rates", request.rates), ("--rate-factor", request.rate_factor)):
        if given is not None:
            raise RefusedError(
                f"{option} {given:g} has no meaning: every arm has its own learning rates; "
                "leave it out, or give --lr auto"
            )
