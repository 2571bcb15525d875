"""A run as a Hugging Face folder: weights, config, tokenizer and a card with the run's figures."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mars._version import __version__
from mars.config.errors import RefusedError
from mars.config.load import load_file
from mars.config.schema import Run
from mars.evaluation import results
from mars.evaluation.published import NINE
from mars.evaluation.subject import PROVENANCE, Subject
from mars.evaluation.tokenizer_files import huggingface_files
from mars.metrics.jsonl import read_records
from mars.metrics.quantities import count_text, loss_text
from mars.metrics.record import Record
from mars.models.huggingface import save_huggingface
from mars.training.run_directory import RunDirectory

# Not run.toml: a folder with that is a run.
_CONFIG = "training.toml"
_CARD = "README.md"


@dataclass(frozen=True, slots=True)
class _Known:
    """What a card is made of."""

    subject: Subject
    config: Run
    manifest: dict[str, Any]
    validation: Record | None
    evaluation: dict[str, Any]


def export_run(subject: Subject, out: Path) -> None:
    """Write a run's model as a folder that transformers opens; one that exists is refused."""
    if subject.kind != "run":
        raise RefusedError(f"{subject.source} is no run directory: it has no run.toml")
    directory = RunDirectory(Path(subject.source))
    known = _known(subject, directory)
    files = {
        _CARD: card(known).encode(),
        _CONFIG: directory.config.read_bytes(),
        PROVENANCE: _provenance(known).encode(),
    }
    if subject.tokenizer.name == "gpt2":
        length = subject.model.config.context_length
        files |= huggingface_files(subject.tokenizer, context_length=length)
    save_huggingface(subject.model, out, files=files)


def _known(subject: Subject, directory: RunDirectory) -> _Known:
    records = read_records(directory.metrics) if directory.metrics.exists() else []
    validated = [
        each for each in records if each.split == "val" and each.step <= (subject.step or 0)
    ]
    measured = results.read(directory.path / results.NAME) or {"tasks": {}, "validation": {}}
    return _Known(
        subject,
        load_file(directory.config),
        directory.read_manifest(),
        max(validated, key=lambda each: each.step, default=None),
        measured,
    )


def _provenance(known: _Known) -> str:
    about = {
        "mars": __version__,
        "run": known.config.name,
        "step": known.subject.step,
        "tokenizer": known.subject.tokenizer.name,
        "data_digest": known.manifest["data"].get("digest"),
    }
    return json.dumps(about, indent=2) + "\n"


def card(known: _Known) -> str:
    """Return the model card: what the model is, how it was trained, how to use it."""
    config = known.config
    parts = [
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags: [gpt2, mars]\n---",
        f"# {config.name}",
        config.description,
        "\n".join(_table(("", ""), _figures(known))),
        *_task_part(known),
        "## Trained with\n\n```sh\n"
        f"{shlex.join(['mars', 'train', _CONFIG])}\n```\n\n"
        f"`{_CONFIG}` is the whole config, with the data at its `data.path`.",
        *_use(known),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _figures(known: _Known) -> Iterator[tuple[str, str]]:
    config, subject, optimizer = known.config, known.subject, known.config.optimizer
    shape, step = config.model, subject.step or 0
    tokens = step * config.training.batch_size * shape.context_length
    yield "parameters", f"{subject.model.parameter_count():,}"
    yield "shape", f"{shape.layers} layers, {shape.heads} heads, width {shape.width}"
    yield "context", f"{shape.context_length} tokens"
    yield "tokenizer", subject.tokenizer.name
    yield "optimizer", f"{optimizer.name}, lr {optimizer.lr:g}, decay {optimizer.weight_decay:g}"
    yield "steps", f"{step} of {config.training.steps}, {count_text(tokens)} tokens"
    if known.validation is not None:
        found = known.validation
        yield "validation loss", f"{loss_text(found.loss)} at step {found.step}"
    yield "seed", str(config.seed)
    yield "data", f"`{config.data.path}`, SHA-256 `{known.manifest['data'].get('digest')}`"
    yield "made by", f"mars {known.manifest.get('version', __version__)}"


def _task_part(known: _Known) -> Iterator[str]:
    """Yield the tasks that were evaluated at this step, if any."""
    measured = known.evaluation["tasks"]
    entries = {
        name: entry
        for name, entry in measured.items()
        if entry.get("step") == known.subject.step and not name.startswith("mmlu_")
    }
    if not entries:
        return
    ordered = sorted(entries, key=lambda name: (NINE.index(name) if name in NINE else 9, name))
    rows = []
    for name in ordered:
        entry = entries[name]
        value, error = (entry[part].get(entry["primary"]) for part in ("metrics", "errors"))
        spread = f" ± {100 * error:.2f}" if error is not None else ""
        shown = f"{100 * value:.2f}{spread}" if value is not None else "-"
        rows.append((name, entry["primary"], shown, f"{entry['num_fewshot']}", entry["examples"]))
    titles = ("task", "metric", "percent", "shots", "examples")
    yield "## Evaluated with lm-evaluation-harness\n\n" + "\n".join(_table(titles, rows))


def _use(known: _Known) -> Iterator[str]:
    lines = ["from transformers import AutoModelForCausalLM, AutoTokenizer", ""]
    lines.append('model = AutoModelForCausalLM.from_pretrained("PATH")')
    if known.subject.tokenizer.name == "gpt2":
        lines.append('tokenizer = AutoTokenizer.from_pretrained("PATH")')
        yield "## Use\n\n```python\n" + "\n".join(lines) + "\n```"
        return
    lines[0] = "import torch\nfrom transformers import AutoModelForCausalLM"
    lines.append('tokens = torch.tensor([list("text".encode())])  # token = byte')
    yield (
        "## Use\n\nThe model reads bytes: the token of a byte is its value, 0 to 255, and 256 ends "
        "a document. There are no tokenizer files, since transformers has no such tokenizer.\n\n"
        "```python\n" + "\n".join(lines) + "\n```"
    )


def _table(titles: tuple[str, ...], rows: Any) -> Iterator[str]:
    yield f"| {' | '.join(titles)} |"
    yield "|---" * len(titles) + "|"
    for row in rows:
        yield f"| {' | '.join(str(each) for each in row)} |"
