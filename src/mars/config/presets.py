"""Runs that are shipped, composed from a file per family.

A family is the TOML of a run with four additions, and strings in which ``{axis}`` stands for the
member's value on that axis:

    base      a file whose keys, axes and cases come before the family's own
    axes      what the members differ in; there is one for each combination
    when      special cases: the keys of those members that ``if`` describes, later ones winning;
              their ``note`` is added to the description
    aliases   further names of members

So a number stands in one place: where everything that shares it is described.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from itertools import product
from typing import Any, get_args

from mars.config.errors import RefusedError
from mars.config.keys import Value, nearest
from mars.config.load import assign, read
from mars.config.schema import Optimizer, OptimizerName, Run
from mars.config.toml import parse, shown

_FAMILIES = ("quickstart", "wikitext2", "gpt2", "digits", "cifar", "cifar-literal")
_OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)
_ADDITIONS = ("base", "axes", "when", "aliases")

# Any: files of ours, in the form above; what is a run's in them is checked as any config is.
_Tables = dict[str, Any]
_Member = Mapping[str, str]


def names() -> list[str]:
    """Return the names of all presets, in the order of their families."""
    return list(_presets())


def describe(name: str) -> str:
    """Return what a preset is, in a sentence or two."""
    return preset(name).description


def preset(name: str) -> Run:
    """Return the run of a preset."""
    if name in _presets():
        return _presets()[name]
    close = nearest(name, _presets())
    hint = f"did you mean {close}? " if close else ""
    raise RefusedError(f"unknown preset {shown(name)}; {hint}mars train --list shows all")


def stem(name: str) -> str:
    """Return a preset's name without its optimizer, or such a name as it is."""
    if f"{name}-{_OPTIMIZERS[0]}" in _presets():
        return name
    run = preset(name)
    return run.name.removesuffix(f"-{run.optimizer.name}")


def sibling(name: str, *, optimizer: OptimizerName) -> Run:
    """Return the preset that differs from one, or from its `stem`, in the optimizer alone."""
    return preset(f"{stem(name)}-{optimizer}")


def constants(optimizer: OptimizerName) -> Optimizer:
    """Return the section of an optimizer with what all families share: betas, decay, gamma."""
    return _compose([_file("optimizers")], member={"optimizer": optimizer}).optimizer


@cache
def _presets() -> dict[str, Run]:
    return {name: run for family in _FAMILIES for name, run in _family(family)}


def _family(file: str) -> Iterator[tuple[str, Run]]:
    """Yield the members of a family, an alias before the member it names."""
    own = _file(file)
    base = _file(own["base"])
    axes = {**own.get("axes", {}), **base["axes"]}
    aliases = {member: alias for alias, member in own.get("aliases", {}).items()}
    for values in product(*axes.values()):
        run = _compose([base, own], member=dict(zip(axes, values, strict=True)))
        if run.name in aliases:
            yield aliases[run.name], run
        yield run.name, run


def _compose(files: list[_Tables], *, member: _Member) -> Run:
    """Return a member's run: the keys of the files, then those of the cases it is among."""
    cases = [case for file in files for case in file["when"] if _is_among(member, case["if"])]
    values: dict[str, Value] = {}
    for tables in (*files, *cases):
        values |= read(_filled(_without(tables, *_ADDITIONS, "if", "note"), member))
    run = assign(Run(), values)
    notes = [_filled(case["note"], member) for case in cases if "note" in case]
    return replace(run, description=" ".join([run.description, *notes]))


def _is_among(member: _Member, described: Mapping[str, str | list[str]]) -> bool:
    """Whether a member has one of the values described on each axis named."""
    return all(
        member[axis] in ([allowed] if isinstance(allowed, str) else allowed)
        for axis, allowed in described.items()
    )


def _filled(value: Any, member: _Member) -> Any:
    """Return a value whose strings have the member's values in place of ``{axis}``."""
    match value:
        case str():
            return value.format_map(member)
        case dict():
            return {key: _filled(each, member) for key, each in value.items()}
        case _:
            return value


def _without(tables: _Tables, *names: str) -> _Tables:
    return {name: value for name, value in tables.items() if name not in names}


def _file(name: str) -> _Tables:
    path = resources.files("mars.config") / "presets" / f"{name}.toml"
    return parse(path.read_text(encoding="utf-8"), source=path.name)
