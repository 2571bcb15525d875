"""What a diagnosis found: bias and variance of the gradient and of what is made of it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mars.config.errors import RefusedError
from mars.report.analysis import Analysis
from mars.report.summary import ArmSummary
from mars.report.trials import Trial

ESTIMATORS = {
    "gradient": "micro-batch gradient",
    "ema": "average (EMA)",
    "approx": "MARS, approx",
    "exact": "MARS, exact",
    "approx_clipped": "MARS, approx, clipped",
    "exact_clipped": "MARS, exact, clipped",
}
KINDS = {
    "all": "all parameters",
    "attention": "attention",
    "mlp": "MLP",
    "embedding": "embedding",
    "vector": "vectors",
}
MODES = ("approx", "exact")


@dataclass(frozen=True, slots=True)
class Moments:
    """Squared bias and variance of an estimator, both relative to the true gradient's square."""

    bias: float
    """May lie below zero by chance: its own sampling noise has been subtracted."""
    variance: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Diagnosis:
    """What was measured on one run."""

    label: str
    trial: Trial
    settings: Mapping[str, float]
    steps: tuple[int, ...]
    kinds: tuple[str, ...]
    estimators: tuple[str, ...]
    moments: Mapping[tuple[int, str, str], Moments]
    """By step, kind and estimator."""


def diagnoses(analysis: Analysis) -> list[Diagnosis]:
    """Return one diagnosis of each arm that has any: at its best rate, if there is one there."""
    found = []
    for summary in analysis.arms:
        trials = [trial for trial in summary.arm.trials if trial.diagnosis is not None]
        trials.sort(key=lambda trial: (trial.lr != summary.best_lr, trial.lr, trial.seed))
        if trials:
            found.append(_read(summary, trials[0]))
    return found


def ratios(diagnosis: Diagnosis, mode: str, *, kind: str = "all") -> list[tuple[int, float]]:
    """Return by step the variance of a mode over that of the average, for a kind of layer."""
    made = []
    for step in diagnosis.steps:
        ema = diagnosis.moments.get((step, kind, "ema"))
        ours = diagnosis.moments.get((step, kind, mode))
        if ema and ours and ema.variance > 0 and ours.variance > 0:
            made.append((step, ours.variance / ema.variance))
    return made


def sentences(diagnosis: Diagnosis) -> list[str]:
    """Return in words how much variance each mode removes beyond the plain average."""
    said = []
    for mode in MODES:
        found = ratios(diagnosis, mode)
        if found:
            shares = [ratio for _, ratio in found]
            mean = math.exp(sum(math.log(share) for share in shares) / len(shares))
            change = "less" if mean < 1 else "more"
            steps = "step" if len(found) == 1 else f"geometric mean of {len(found)} steps"
            span = "" if len(found) == 1 else f", from {min(shares):.1%} to {max(shares):.1%}"
            said.append(
                f"{ESTIMATORS[mode]} has {mean:.1%} of the variance of the plain average "
                f"({abs(1 - mean):.1%} {change}; {steps}{span})."
            )
    return said


def _read(summary: ArmSummary, trial: Trial) -> Diagnosis:
    found = trial.diagnosis or {}
    try:
        moments = {
            (int(at["step"]), str(kind), str(estimator)): _moments(values)
            for at in found["steps"]
            for kind, estimators in at["kinds"].items()
            for estimator, values in estimators.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        file = trial.path / "diagnosis.json"
        raise RefusedError(
            f"{file} is damaged: {type(error).__name__} {error}; make it again with mars diagnose"
        ) from error
    return Diagnosis(
        label=summary.label,
        trial=trial,
        settings={
            name: value
            for name, value in found.items()
            if name != "format" and isinstance(value, int | float)
        },
        steps=tuple(sorted({step for step, _, _ in moments})),
        kinds=_ordered({kind for _, kind, _ in moments}, tuple(KINDS)),
        estimators=_ordered({estimator for _, _, estimator in moments}, tuple(ESTIMATORS)),
        moments=moments,
    )


# Any: parsed JSON; a part of the wrong kind raises one of the errors that `_read` names.
def _moments(values: Mapping[str, Any]) -> Moments:
    def number(name: str) -> float | None:
        value = values.get(name)
        return None if value is None else float(value)

    bias, variance = number("bias"), number("variance")
    return Moments(
        math.nan if bias is None else bias,
        math.nan if variance is None else variance,
        number("variance_low"),
        number("variance_high"),
    )


def _ordered(found: set[str], known: tuple[str, ...]) -> tuple[str, ...]:
    """Return the known names in their order, then others."""
    return (*(name for name in known if name in found), *sorted(found - set(known)))
