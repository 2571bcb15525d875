"""Whether the arms had the same data, model and budget, without which nothing can be compared."""

from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter

from mars.config.schema import Model, Run, Vision
from mars.report.results import Results
from mars.report.trials import Trial
from mars.report.wording import called, listed, value_text


def budget(config: Run) -> int:
    """Return the tokens or images that a run is trained on, all of its steps together."""
    return config.training.steps * config.count_per_step


def inequalities(results: Results) -> tuple[str, ...]:
    """Return what the arms did not have in common and should have, a clause each."""
    found = []
    for what, read in _demands(results).items():
        arms_by_value: dict[str, list[str]] = {}
        for arm in results.arms:
            for value in dict.fromkeys(map(read, arm.trials)):
                arms_by_value.setdefault(value, []).append(called(arm.label))
        if len(arms_by_value) > 1:
            parts = (f"{value} for {listed(arms)}" for value, arms in arms_by_value.items())
            found.append(f"{what} ({'; '.join(parts)})")
    return tuple(found)


def _demands(results: Results) -> dict[str, Callable[[Trial], str]]:
    """Return what has to be the same for all trials, in words."""
    names = [f"model.{field.name}" for field in fields(Model)]
    names += [f"vision.{field.name}" for field in fields(Vision)]
    varied = [n for n in names if len({attrgetter(n)(t.config) for t in results.trials}) > 1]
    return {
        "different data": _digest,
        "different budgets": lambda trial: f"{budget(trial.config):,} {trial.unit}",
        "different models": lambda trial: listed(
            [
                f"{name.rpartition('.')[2]} {value_text(attrgetter(name)(trial.config))}"
                for name in varied
            ]
        ),
        "different validations": lambda trial: (
            f"{trial.config.training.validation_sequences} sequences"
        ),
    }


def _digest(trial: Trial) -> str:
    data = trial.manifest.get("data")
    digest = data.get("digest") if isinstance(data, Mapping) else None
    return f"digest {str(digest)[:12]}" if digest else "digest unknown"
