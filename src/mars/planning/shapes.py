"""Models by name: the GPT-2 of the presets, and GPT-3's larger shapes.

GPT-3's are those of table 2.1 of Brown et al., "Language Models are Few-Shot Learners" (2020). Its
width for 13B, 5140, is no multiple of its 40 heads of 128: 5120 is taken.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mars.config import presets
from mars.config.errors import RefusedError
from mars.config.keys import nearest
from mars.config.load import load_file
from mars.config.schema import Run
from mars.config.toml import shown

_GPT2 = ("gpt2-small", "gpt2-medium", "gpt2-large", "gpt2-xl")
# Layers, heads, width.
_GPT3: Mapping[str, tuple[int, int, int]] = {
    "gpt3-2.7b": (32, 32, 2560),
    "gpt3-6.7b": (32, 32, 4096),
    "gpt3-13b": (40, 40, 5120),
}
_GPT3_CONTEXT = 2048
NAMES = (*_GPT2, *_GPT3)


def is_shape(name: str) -> bool:
    """Return whether a name stands for a shape alone, and not for a whole run."""
    return name in NAMES


def run_of(name: str) -> Run:
    """Return the run of a shape's name, of a preset, or of a TOML file."""
    path = Path(name)
    if path.suffix == ".toml" or path.is_file():
        return load_file(path)
    if name in _GPT2:
        return replace(presets.preset(f"{name}-openwebtext-mars-adamw"), name=name)
    if name in _GPT3:
        return _gpt3(name)
    if name in presets.names():
        return presets.preset(name)
    close = nearest(name, [*NAMES, *presets.names()])
    hint = f"did you mean {close}? " if close else ""
    raise RefusedError(
        f"--model: unknown model {shown(name)}; {hint}There are {', '.join(NAMES)}, the presets of "
        "mars train --list, and TOML files"
    )


def _gpt3(name: str) -> Run:
    layers, heads, width = _GPT3[name]
    base = presets.preset("gpt2-xl-openwebtext-mars-adamw")
    model = replace(
        base.model, layers=layers, heads=heads, width=width, context_length=_GPT3_CONTEXT
    )
    return replace(
        base, name=name, model=model, training=replace(base.training, micro_batch_size=1)
    )
