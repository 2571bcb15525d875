"""One run of the benchmark, from a checked plan to a report."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from mars.bench import results
from mars.bench.budgets import judged_size, verdicts
from mars.bench.measure import Measurements, import_seconds, measure
from mars.bench.memory import in_groups
from mars.bench.options import Plan
from mars.bench.shapes import Size, size_of
from mars.bench.subjects import Subject, subjects

SCHEMA = 1
# Newton-Schulz makes a step of a large model take seconds, and torch's in bfloat16 a minute.
_ORTHOGONAL_STEPS = 3
_IMPORT_PAIRS = 5

Tell = Callable[[str], None]


def run(plan: Plan, *, command: str, tell: Tell) -> results.Report:
    """Measure everything a plan asks for; what cannot be measured is refused before the start.

    ``tell`` receives a line of progress now and then.
    """
    with _threads(plan.threads):
        sizes = [size_of(name) for name in plan.sizes]
        found, notes = subjects(plan)
        groups = [in_groups(size, [s for s in found if s.takes(size)]) for size in sizes]
        notes += [
            f"{size.name}: {subject.name} is left out, it compiles {len(size.shapes):,} tensors "
            "into one function"
            for size in sizes
            for subject in found
            if not subject.takes(size)
        ]
        machine = results.machine()
        reports = []
        for size, own_groups in zip(sizes, groups, strict=True):
            measured = [_measure(size, group, plan, tell) for group in own_groups]
            notes += _notes(size, measured)
            reports.append(results.size_report(size, measured))
        imports = None
        if not plan.quick:
            tell("importing mars and torch in fresh processes")
            imports = import_seconds(pairs=_IMPORT_PAIRS)
    judged = judged_size(tuple(reports))
    return results.Report(
        schema=SCHEMA,
        command=command,
        machine=machine,
        versions=results.versions(),
        options=results.as_options(plan),
        sizes=tuple(reports),
        verdict_size=judged.name,
        verdict=verdicts(judged, imports),
        notes=tuple(dict.fromkeys(notes)),
    )


def _measure(size: Size, group: list[Subject], plan: Plan, tell: Tell) -> Measurements:
    if any(subject.orthogonalizes for subject in group):
        steps = min(plan.steps, _ORTHOGONAL_STEPS)
        return measure(size, group, steps=steps, rounds=1, tell=tell)
    return measure(size, group, steps=plan.steps, rounds=plan.rounds, tell=tell)


def _notes(size: Size, measured: list[Measurements]) -> list[str]:
    """Return what a reader of a size's figures should know beside them."""
    notes = [
        f"{one.subject.name} warned: {line}"
        for group in measured
        for one in group.subjects
        for line in one.warnings
    ]
    for orthogonalizes in (False, True):
        count = sum(
            any(one.subject.orthogonalizes for one in group.subjects) == orthogonalizes
            for group in measured
        )
        if count > 1:
            notes.append(f"{size.name}: measured in {count} groups, because of memory")
    return notes


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    """Give torch so many threads, or leave it its choice."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
