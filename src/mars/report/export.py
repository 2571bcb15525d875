"""An analysis as plain JSON."""

import math
from collections.abc import Sequence
from typing import Any

from mars.report.environment import differences, environment
from mars.report.results import Results
from mars.report.statistics import Estimate, Paired
from mars.report.summary import ArmSummary
from mars.report.trials import Trial

CLOCK_KEYS = ("seconds", "step_seconds", "seconds_to_baseline", "peak_memory_bytes", "cost")
"""What a clock or the memory of a process decides: the keys, at any depth, in which a comparison
that was killed and resumed may differ from one that was not."""

# Any: JSON.
_Json = dict[str, Any]


def as_json(results: Results, arms: Sequence[ArmSummary]) -> _Json:
    """Return results and figures as JSON values in a stable order; what is not finite is null."""
    return {
        "format": 1,
        "title": results.title,
        "description": results.description,
        "command": results.command,
        "baseline": results.baseline,
        "seeds": list(results.seeds),
        "search_seeds": results.search_seeds,
        "pending": results.pending,
        "failures": list(results.failures),
        "arms": [_arm(arm) for arm in arms],
        "differences": {
            key: {label: _plain(value) for label, value in by_label.items()}
            for key, by_label in differences(results).items()
        },
        "environment": {name: list(values) for name, values in environment(results).items()},
    }


def without_clock(value: Any) -> Any:
    """Return JSON values without the keys that depend on a clock or on memory in use."""
    if isinstance(value, dict):
        return {key: without_clock(each) for key, each in value.items() if key not in CLOCK_KEYS}
    return [without_clock(each) for each in value] if isinstance(value, list) else value


def _arm(summary: ArmSummary) -> _Json:
    return {
        "label": summary.label,
        "optimizer": summary.arm.optimizer,
        "settings": {key: _plain(value) for key, value in summary.arm.settings.items()},
        "call": summary.call,
        "best_lr": summary.best_lr,
        "is_at_edge": summary.is_at_edge,
        "loss": _estimate(summary.loss),
        "losses": {str(seed): _plain(loss) for seed, loss in summary.losses.items()},
        "paired": _paired(summary.paired),
        "adjusted_p": summary.adjusted_p,
        "reached": None if summary.reached is None else list(summary.reached),
        "tokens_to_baseline": _estimate(summary.tokens_to_baseline),
        "seconds_to_baseline": _estimate(summary.seconds_to_baseline),
        "step_seconds": _estimate(summary.step_seconds),
        "optimizer_bytes": summary.optimizer_bytes,
        "peak_memory_bytes": summary.peak_memory_bytes,
        "diverged": summary.diverged,
        "sensitivity": [
            {"lr": at.lr, "loss": _estimate(at.loss), "diverged": at.diverged}
            for at in summary.sensitivity
        ],
        "trials": [_trial(trial) for trial in summary.arm.trials],
    }


def _trial(trial: Trial) -> _Json:
    seconds = trial.validation.seconds
    return {
        "lr": trial.lr,
        "seed": trial.seed,
        "is_complete": trial.is_complete,
        "is_diverged": trial.is_diverged,
        "final_loss": _plain(trial.final_loss),
        "seconds": _plain(float(seconds[-1])) if len(seconds) else None,
    }


def _estimate(estimate: Estimate | None) -> _Json | None:
    if estimate is None:
        return None
    return {
        "mean": estimate.mean,
        "low": estimate.low,
        "high": estimate.high,
        "count": estimate.count,
    }


def _paired(paired: Paired | None) -> _Json | None:
    if paired is None:
        return None
    return {
        "difference": _estimate(paired.difference),
        "p_value": paired.p_value,
        "seeds": list(paired.seeds),
        "doubt": paired.doubt,
    }


def _plain(value: object) -> Any:
    """Return a value of a config or a measurement as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value
