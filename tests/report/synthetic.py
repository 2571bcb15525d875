"""Results with given numbers, in memory and on disk, without training anything.

What an experiment gave is a table of final losses: by arm, by learning rate, by seed.

    FINALS = {"adamw": {0.004: {0: 1.9, 1: 1.92}}, "mars-m": {0.016: {0: 1.5, 1: 1.53}}}

A final loss of ``inf`` is a run that diverged halfway, one of ``nan`` a run that is halfway, and
one of ``None`` a run that is planned and has not begun. The optimizer of an arm is the first word
of its label, and further words are settings: ``"mars-adamw gamma=0.05"``.

    make_results(FINALS)               Results in memory, for tests of what they mean: 0.1 ms a run
    write_comparison(folder, FINALS)   a comparison directory: 1 ms a run of 60 records
    write_run(folder, config)          one run directory

Each run's validation loss falls from 5.5 along an exponential and ends exactly at its final loss;
`Shape` says how many records there are and how long a step takes. To change the curve itself, give
``write_run`` or ``make_trial`` the losses.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path

import numpy as np

from mars.config.load import dumps, override
from mars.config.presets import preset
from mars.config.schema import Run
from mars.report.results import Arm, AtRate, Results
from mars.report.trials import Curve, Floats, Trial

Finals = Mapping[str, Mapping[float, Mapping[int, float | None]]]

START = 5.5
MANIFEST = {
    "version": "0.1.0",
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "python": "3.11.7",
    "torch": "2.13.0",
    "hardware": {
        "device": "cpu, 1 thread",
        "processor": "x86_64",
        "cores": 2,
        "threads": 1,
        "system": "Linux",
    },
    "seed": 0,
    "parameters": 826_112,
    "tokenizer": "bytes",
    "data": {"digest": "ab" * 32, "train_tokens": 11_662_268},
    "started": "2026-01-01T00:00:00+00:00",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How much a run records, and how fast it is."""

    records: int = 50
    """Training records, evenly spaced."""
    validations: int = 10
    step_seconds: float = 0.04
    optimizer_bytes: float | None = 6.6e6
    peak_memory_bytes: float | None = 4e8
    measures: bool = True
    """Whether MARS's own measures are recorded with each training record."""


@cache
def make_config(label: str, *, lr: float, seed: int, steps: int = 500) -> Run:
    """Return the quickstart run of an arm, by its label."""
    optimizer, *settings = label.split()
    run = preset(f"quickstart-{optimizer}")
    keys = [f"optimizer.lr={lr!r}", f"seed={seed}", f"training.steps={steps}", *settings]
    return override(run, keys)


def falling(final: float, parts: Floats) -> Floats:
    """Return losses along a run, at parts of it from 0 to 1; the last is the final one."""
    left = (np.exp(-5 * parts) - math.exp(-5)) / (1 - math.exp(-5))
    return final + (START - final) * left


def _parts(count: int, final: float) -> Floats:
    """Return where a run has records: up to its end, or its half if it did not get there."""
    parts = np.arange(1, count + 1) / count
    return parts if math.isfinite(final) else parts[: (count + 1) // 2]


def make_trial(
    config: Run,
    final: float,
    *,
    path: Path = Path("run"),
    losses: Sequence[float] | None = None,
    shape: Shape = Shape(),  # noqa: B008  # frozen
    manifest: Mapping[str, object] = MANIFEST,
) -> Trial:
    """Return a run in memory; ``losses`` are its validations, in place of an exponential."""
    reached = final if math.isfinite(final) else 1.5
    per_step = config.training.batch_size * config.model.context_length

    def curve(parts: Floats, values: Floats) -> Curve:
        steps = np.round(parts * config.training.steps)
        return Curve(steps, steps * per_step, steps * shape.step_seconds, values)

    train, validation = _parts(shape.records, final), _parts(shape.validations, final)
    if losses is not None:
        validation = np.arange(1, len(losses) + 1) / len(losses)
    found = falling(reached, validation) if losses is None else np.array(losses, dtype=float)
    if math.isinf(final):
        found[-1] = math.nan
    speed = np.full(len(train), per_step / shape.step_seconds)
    training = curve(train, falling(reached, train))
    return Trial(
        path=path,
        config=config,
        manifest={**manifest, "seed": config.seed},
        unit="tokens",
        train=training,
        validation=curve(validation, found),
        measures={"tokens_per_second": (training.steps, speed)},
        is_complete=not math.isnan(final),
        is_diverged=math.isinf(final),
        optimizer_bytes=shape.optimizer_bytes,
        peak_memory_bytes=shape.peak_memory_bytes,
    )


def make_results(
    finals: Finals,
    *,
    baseline: str | None = "adamw",
    search_seeds: int | None = None,
    title: str = "synthetic",
    shapes: Mapping[str, Shape] | None = None,
    **given: object,
) -> Results:
    """Return results in memory; ``given`` are other fields of `Results`."""
    arms = []
    for label, by_rate in finals.items():
        shape = (shapes or {}).get(label, Shape())
        rates = tuple(
            AtRate(
                lr=lr,
                trials=tuple(
                    make_trial(
                        make_config(label, lr=lr, seed=seed),
                        final,
                        path=Path(_path(label, lr, seed)),
                        shape=shape,
                    )
                    for seed, final in sorted(by_seed.items())
                    if final is not None
                ),
            )
            for lr, by_seed in sorted(by_rate.items())
        )
        rates = tuple(rate for rate in rates if rate.trials)
        arms.append(Arm(label=label, optimizer=label.split()[0], settings={}, rates=rates))
    seeds = _seeds(finals)
    every = [
        final
        for rates in finals.values()
        for by_seed in rates.values()
        for final in by_seed.values()
    ]
    fields = {
        "title": title,
        "description": "Synthetic results.",
        "command": None,
        "pending": sum(final is None or math.isnan(final) for final in every),
        "search_seeds": search_seeds or len(seeds),
        **given,
    }
    return Results(arms=tuple(arms), baseline=baseline, seeds=seeds, **fields)


def write_run(
    folder: Path,
    config: Run,
    final: float = 1.5,
    *,
    losses: Sequence[float] | None = None,
    shape: Shape = Shape(),  # noqa: B008  # frozen
    manifest: Mapping[str, object] = MANIFEST,
    unit: str = "tokens",
) -> Path:
    """Write a run directory, its metrics.jsonl as training leaves it, and return its path."""
    folder.mkdir(parents=True)
    (folder / "run.toml").write_text(dumps(config))
    (folder / "manifest.json").write_text(json.dumps({**manifest, "seed": config.seed}))
    trial = make_trial(config, final, losses=losses, shape=shape)
    lines = [(step, 0, line) for step, line in _train_lines(trial, shape, unit)]
    lines += [(step, 1, line) for step, line in _validation_lines(trial, unit)]
    text = "".join(f"{line}\n" for _, _, line in sorted(lines))
    (folder / "metrics.jsonl").write_text(text)
    return folder


def _train_lines(trial: Trial, shape: Shape, unit: str) -> list[tuple[float, str]]:
    curve, lr = trial.train, trial.lr
    noise = np.random.default_rng(trial.seed).random((len(curve.steps), 3))
    rows = zip(
        *(column.tolist() for column in (curve.steps, curve.counts, curve.seconds, curve.losses)),
        noise.tolist(),
        strict=True,
    )
    per_second = trial.measures["tokens_per_second"][1][0]
    is_mars = shape.measures and trial.config.optimizer.name.startswith("mars")
    made = []
    for step, count, seconds, loss, (norm, ratio, cosine) in rows:
        measures = (
            f'"correction_ratio": {ratio}, "gradient_cosine": {cosine}, "clip_rate": 0.1, '
            if is_mars
            else ""
        )
        line = (
            f'{{"step": {step:.0f}, "{unit}": {count:.0f}, "seconds": {seconds}, "split": "train", '
            f'"loss": {loss + 0.1 * (norm - 0.5)}, "lr": {lr}, "grad_norm": {norm}, {measures}'
            f'"{unit}_per_second": {per_second}, "skipped_steps": 0}}'
        )
        made.append((step, line))
    return made


def _validation_lines(trial: Trial, unit: str) -> list[tuple[float, str]]:
    curve, made = trial.validation, []
    extra = {
        "optimizer_bytes": trial.optimizer_bytes,
        "peak_memory_bytes": trial.peak_memory_bytes,
    }
    for i, step in enumerate(curve.steps):
        fields = {
            "step": int(step),
            unit: int(curve.counts[i]),
            "seconds": float(curve.seconds[i]),
            "split": "val",
            "loss": float(curve.losses[i]) if math.isfinite(curve.losses[i]) else None,
            "lr": trial.lr,
            **{name: value for name, value in extra.items() if value is not None},
        }
        if trial.is_diverged and i == len(curve.steps) - 1:
            fields |= {"loss": None, "diverged": 1.0}
        made.append((step, json.dumps(fields, allow_nan=False)))
    return made


def write_comparison(
    folder: Path,
    finals: Finals,
    *,
    baseline: str | None = "adamw",
    search_seeds: int | None = None,
    name: str = "synthetic",
    shapes: Mapping[str, Shape] | None = None,
    steps: int = 500,
    failures: Sequence[Mapping[str, str]] = (),
    manifest: Mapping[str, object] = MANIFEST,
) -> Path:
    """Write a comparison directory and return its path."""
    arms, trials = [], []
    for label, by_rate in finals.items():
        optimizer, *settings = label.split()
        keys = [setting.partition("=")[0] for setting in settings]
        keys = [key if "." in key else f"optimizer.{key}" for key in keys]
        config = make_config(label, lr=0.0, seed=0)
        arms.append(
            {
                "label": label,
                "optimizer": optimizer,
                "rates": sorted(by_rate),
                "settings": {key: attrgetter(key)(config) for key in keys},
            }
        )
        shape = (shapes or {}).get(label, Shape())
        for lr, by_seed in by_rate.items():
            for seed, final in by_seed.items():
                path = _path(label, lr, seed)
                trials.append({"arm": label, "lr": lr, "seed": seed, "path": path})
                if final is not None:
                    config = make_config(label, lr=lr, seed=seed, steps=steps)
                    config = replace(config, name=name)
                    write_run(folder / path, config, final, shape=shape, manifest=manifest)
    seeds = _seeds(finals)
    plan = {
        "format": 1,
        "name": name,
        "description": "Synthetic results.",
        "command": "mars compare quickstart",
        "baseline": baseline,
        "seeds": seeds,
        "search_seeds": search_seeds or len(seeds),
        "arms": arms,
        "trials": trials,
        "failures": list(failures),
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps(plan))
    return folder


def _seeds(finals: Finals) -> tuple[int, ...]:
    found = {seed for rates in finals.values() for by_seed in rates.values() for seed in by_seed}
    return tuple(sorted(found))


def _path(label: str, lr: float, seed: int) -> str:
    slug = label.replace(" ", "-").replace("=", "-")
    return f"runs/{slug}/lr-{lr:g}/seed-{seed}"
