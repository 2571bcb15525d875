"""Whether a diagnosis fits into memory: an estimate before anything is built."""

import torch

from mars.bench.memory import available_bytes, human_bytes
from mars.config.errors import RefusedError
from mars.config.schema import Run
from mars.diagnosis.estimators import Correction
from mars.diagnosis.plan import Plan
from mars.models.gpt2 import GPT2
from mars.training.hardware import resolve_device

# Left to the system, to activations and to errors of the estimate.
_USABLE_SHARE = 0.8
_BYTES = 4
# The run's parameters and up to three states, the model that gradients are taken on, four
# gradients (here, at the previous point, of the last sample, and of a part), two corrected ones
# and a clipped one, a difference, and the gradients of two large batches.
_FIXED_COPIES = 4 + 1 + 4 + 3 + 1 + 2


def needed_copies(correction: Correction, *, window: int, is_host: bool) -> int:
    """Return how many times the model's size is needed on the host.

    The path is always there; the rest is where the model is.
    """
    path = window + 1
    # A momentum of the present stream and the mean over streams for each.
    return path + (_FIXED_COPIES + 2 * len(correction.estimators) if is_host else 0)


def check_memory(config: Run, plan: Plan, correction: Correction) -> None:
    """Refuse a history that does not fit, naming one that does."""
    with torch.device("meta"):
        size = _BYTES * GPT2(config.model).parameter_count()
    is_host = resolve_device(config.training.device).type == "cpu"
    budget = int(_USABLE_SHARE * available_bytes())
    needed = size * needed_copies(correction, window=plan.history, is_host=is_host)
    if needed <= budget:
        return
    fitting = budget // size - needed_copies(correction, window=0, is_host=is_host)
    way_out = f"--history {fitting} fits" if fitting >= 1 else "not even --history 1 fits here"
    raise RefusedError(
        f"--history {plan.history} takes about {human_bytes(needed)} for a model of "
        f"{human_bytes(size)}, {human_bytes(budget)} can be used; {way_out}"
    )
