"""The tasks that names stand for: packaged ones, local task files, packaged ones on local data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mars.config.errors import RefusedError
from mars.config.keys import nearest
from mars.evaluation.published import NINE

SUITE = "mars9"
"""The paper's nine tasks by one name."""

# Where lm_eval keeps the nine: indexing these folders takes a moment, indexing all takes long.
_FOLDERS = (
    *("arc", "super_glue/boolq", "hellaswag", "openbookqa", "piqa", "winogrande", "sciq"),
    "mmlu/default",
)
_READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}
_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")

# What lm_eval calls a TaskDict: tasks and groups by name; it has no types.
Loaded = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which tasks, on how much of them, and how."""

    names: tuple[str, ...]
    task_path: Path | None = None
    limit: int | None = None
    num_fewshot: int | None = None
    seed: int = 1234


def parse_names(text: str) -> tuple[str, ...]:
    """Return the tasks of a comma-separated list, each once, the suite's name spelt out."""
    given = [name.strip() for name in text.split(",") if name.strip()]
    if not given:
        raise RefusedError(f"--tasks {text!r} names no task; use {SUITE}, or such as {NINE[0]}")
    spelt = [each for name in given for each in (NINE if name == SUITE else (name,))]
    return tuple(dict.fromkeys(spelt))


def check_asked(asked: Asked) -> None:
    """Refuse what can be refused before anything is imported."""
    for option, value, least in (
        ("limit", asked.limit, 1),
        ("num-fewshot", asked.num_fewshot, 0),
        ("seed", asked.seed, 0),
    ):
        if value is not None and value < least:
            raise RefusedError(f"--{option} must be at least {least}, got {value}")
    if asked.task_path is not None and not asked.task_path.is_dir():
        raise RefusedError(f"--task-path {asked.task_path} is no folder; name one with task files")


def load_tasks(asked: Asked) -> Loaded:
    """Return the tasks with their data, ready to be evaluated; refuse what cannot be."""
    manager = _manager(asked)
    specs = [_spec(name, manager, asked.task_path) for name in asked.names]
    loaded: Loaded = {"tasks": {}, "groups": {}, "group_map": {}}
    for name, spec in zip(asked.names, specs, strict=True):
        for part, found in _load(name, spec, manager).items():
            loaded[part].update(found)
    for name, task in loaded["tasks"].items():
        _set_fewshot(name, task, asked)
    return loaded


def _manager(asked: Asked) -> Any:
    """Return an index of task files that has every name, the smallest one that does."""
    # lm_eval has no types.
    import lm_eval.tasks as packaged  # type: ignore[import-untyped]

    root = Path(packaged.__file__ or "").parent
    own = [asked.task_path] if asked.task_path else []
    few = [*(root / folder for folder in _FOLDERS), *own]
    for paths, include_defaults in ((own, False), (few, False), (own, True)):
        manager = packaged.TaskManager(include_path=paths, include_defaults=include_defaults)
        unknown = [name for name in asked.names if name not in manager.task_index]
        if not unknown:
            return manager
    close = nearest(unknown[0], [*manager.all_tasks, SUITE])
    hint = f"did you mean {close}?" if close else "lm_eval ls tasks lists them"
    raise RefusedError(f"there is no task {unknown[0]!r}; {hint}")


def _spec(name: str, manager: Any, task_path: Path | None) -> str | dict[str, Any]:
    """Return what to load a task from: its name, or its config with local data in place."""
    entry = manager.task_index[name]
    files = _local_files(task_path / name) if task_path else {}
    if not files or entry.yaml_path is None or entry.yaml_path.is_relative_to(task_path):
        return name
    from lm_eval.tasks._yaml_loader import load_yaml  # type: ignore[import-untyped]  # as above

    config = dict(load_yaml(entry.yaml_path, resolve_func=True))
    kinds = {_READERS[path.suffix] for path in files.values()}
    if len(kinds) > 1 or "group" in config:
        raise RefusedError(f"{task_path}/{name}: {name} needs a task file of its own for its data")
    config |= {
        "dataset_path": kinds.pop(),
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {split: str(path) for split, path in files.items()}},
    }
    return config | {key: None for key in _SPLITS if config.get(key) not in files}


def _local_files(folder: Path) -> dict[str, Path]:
    """Return the files of a task's data by split: ``hellaswag/validation.jsonl``."""
    paths = folder.iterdir() if folder.is_dir() else []
    return {path.stem: path for path in sorted(paths) if path.suffix in _READERS}


def _load(name: str, spec: str | dict[str, Any], manager: Any) -> Loaded:
    try:
        loaded: Loaded = manager.load([spec])
    except RefusedError:
        raise
    except Exception as error:  # of task files, data readers and the hub: each has its own
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        way_out = "check the network, or give local data with --task-path"
        if not isinstance(error, ConnectionError):
            way_out = "check its task file and data"
        raise RefusedError(f"task {name} cannot be loaded: {reason}; {way_out}") from error
    for each, task in loaded["tasks"].items():
        if task.OUTPUT_TYPE == "generate_until":
            raise RefusedError(
                f"task {each} lets the model write, and mars eval scores what is given; "
                "use lm_eval on a folder of mars export"
            )
    return loaded


def _set_fewshot(name: str, task: Any, asked: Asked) -> None:
    """Set how many examples a task shows; refuse examples that it does not have."""
    own, wanted = task.config.num_fewshot, asked.num_fewshot
    if wanted is not None and own == 0 and wanted > 0:
        raise RefusedError(f"--num-fewshot {wanted}: the file of task {name} says 0; leave it out")
    shown = wanted if wanted is not None else own or 0
    if shown and not _has_examples(task):
        raise RefusedError(
            f"--num-fewshot {shown}: task {name} has no training split to take examples from; "
            "use 0, or add one to its data"
        )
    task.set_config(key="num_fewshot", value=shown)
    task.set_fewshot_seed(seed=asked.seed)


def _has_examples(task: Any) -> bool:
    # Never those of the split that is evaluated, which lm_eval would fall back to.
    given = task.fewshot_cfg
    return bool(task.has_training_docs() or given.split is not None or given.samples is not None)


def data_of(loaded: Loaded) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each task with where its data comes from, as its config says."""
    for name, task in loaded["tasks"].items():
        config = task.config
        split: Sequence[str | None] = (config.test_split, config.validation_split)
        yield (
            name,
            {
                "path": config.dataset_path,
                "name": config.dataset_name,
                "split": next((each for each in split if each is not None), None),
            },
        )
