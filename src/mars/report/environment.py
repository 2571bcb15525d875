"""Where the runs come from, and what their configs do not share."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from mars.config.keys import Value
from mars.report.choice import choose
from mars.report.grouping import COMPARED
from mars.report.results import Results
from mars.report.trials import Trial

# Any: a manifest is JSON.
_FACTS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "mars": lambda manifest: manifest.get("version"),
    "commit": lambda manifest: manifest.get("commit"),
    "python": lambda manifest: manifest.get("python"),
    "torch": lambda manifest: manifest.get("torch"),
    "device": lambda manifest: _part(manifest, "hardware", "device"),
    "processor": lambda manifest: _part(manifest, "hardware", "processor"),
    "cores": lambda manifest: _part(manifest, "hardware", "cores"),
    "threads": lambda manifest: _part(manifest, "hardware", "threads"),
    "system": lambda manifest: _part(manifest, "hardware", "system"),
    "parameters": lambda manifest: manifest.get("parameters"),
    "tokenizer": lambda manifest: manifest.get("tokenizer"),
    "data digest": lambda manifest: _part(manifest, "data", "digest"),
    "training tokens": lambda manifest: _part(manifest, "data", "train_tokens"),
}


def environment(results: Results) -> dict[str, tuple[str, ...]]:
    """Return versions, hardware and data by name: each with the values that occur, most often one.

    What no manifest says is left out; what some do not say is "unknown" for those.
    """
    found = {
        name: tuple(dict.fromkeys(_text(read(trial.manifest)) for trial in results.trials))
        for name, read in _FACTS.items()
    }
    return {name: values for name, values in found.items() if values != ("unknown",)}


def differences(results: Results) -> dict[str, dict[str, Value]]:
    """Return the config keys in which the arms differ: by key, the value of each arm by label.

    An arm has the values of its best rate, or of its first where it has no best one.
    """
    configs = {arm.label: _typical(results, arm.label).config for arm in results.arms if arm.rates}
    table = {}
    for key in COMPARED:
        if key != "seed":
            values = {label: attrgetter(key)(config) for label, config in configs.items()}
            if len(set(values.values())) > 1:
                table[key] = values
    return table


def _typical(results: Results, label: str) -> Trial:
    arm = next(arm for arm in results.arms if arm.label == label)
    choice = choose(arm, results.seeds[: results.search_seeds])
    return (choice.rate if choice else arm.rates[0]).trials[0]


def _part(manifest: Mapping[str, Any], *names: str) -> Any:
    found: Any = manifest
    for name in names:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _text(value: object) -> str:
    return "unknown" if value is None else str(value)
