"""One optimizer step: gradients of the micro-batches, their norm, the update."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mars import MARS
from mars.config import schema
from mars.config.errors import FailedError
from mars.optim.measures import correction_measures
from mars.training.optimizers import AnyOptimizer
from mars.training.parallel import Accumulate, at_once
from mars.training.task import Forward, MicroBatch, Task

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
# What clip_grads_with_norm_ adds to the norm.
_CLIP_EPS = 1e-6


def autocast(device: torch.device, *, precision: str) -> torch.autocast:
    """Return the context in which a model computes at a precision."""
    dtype = _DTYPES.get(precision)
    return torch.autocast(device.type, dtype, enabled=dtype is not None)


@dataclass(frozen=True, slots=True)
class Taken:
    """What one step did; a skipped one changed nothing but the data's position."""

    loss: Tensor
    grad_norm: Tensor
    is_skipped: bool
    measures: dict[str, float]


class NonfiniteError(FailedError):
    """A gradient is not finite and the config does not allow to leave the step out."""


class Stepper:
    """Takes steps on a model: accumulation, autocast, loss scaling, clipping, exact mode."""

    def __init__(
        self,
        model: Forward,
        optimizer: AnyOptimizer,
        task: Task,
        *,
        config: schema.Training,
        accumulate: Accumulate = at_once,
    ) -> None:
        self.optimizer = optimizer
        self._model = model
        self._task = task
        self._config = config
        self._accumulate = accumulate
        self._params = [p for group in optimizer.param_groups for p in group["params"]]
        self._device = self._params[0].device
        self._is_exact = isinstance(optimizer, MARS) and not optimizer.defaults["is_approx"]
        self._scaler = torch.amp.GradScaler(
            self._device.type, enabled=config.precision == "float16"
        )
        self._norm = torch.zeros((), device=self._device)

    def __call__(self, batch: Sequence[MicroBatch], *, measure: bool) -> Taken:
        """Take one step on its micro-batches; ``measure`` adds MARS's own measures."""
        if self._is_exact:
            return self._exact_step(batch)
        loss = self._gradients(batch)
        is_skipped = not torch.isfinite(self._norm)
        if is_skipped and not self._config.skip_nonfinite:
            raise self._nonfinite()
        measures = {}
        if measure and not is_skipped and isinstance(self.optimizer, MARS):
            measures = correction_measures(self.optimizer)
        if self._scaler.is_enabled():
            self._scaler.step(self.optimizer)  # type: ignore[arg-type]  # `Together` will do
            self._scaler.update()
        elif not is_skipped:
            self.optimizer.step()
        return Taken(loss, self._norm, is_skipped, measures)

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's state, and the loss scaler's."""
        return {"optimizer": self.optimizer.state_dict(), "scaler": self._scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self.optimizer.load_state_dict(state["optimizer"])
        self._scaler.load_state_dict(state["scaler"])

    def _exact_step(self, batch: Sequence[MicroBatch]) -> Taken:
        """Take a step of exact mode, in which the optimizer itself leaves out non-finite steps."""
        assert isinstance(self.optimizer, MARS)
        before = self._skipped()
        try:
            loss = self.optimizer.step(lambda: float(self._gradients(batch)))
        except RuntimeError as error:
            if not self._config.skip_nonfinite and not torch.isfinite(self._norm):
                raise self._nonfinite() from error
            raise
        return Taken(torch.tensor(loss), self._norm, self._skipped() > before, {})

    def _skipped(self) -> int:
        return sum(int(group["skipped_steps"]) for group in self.optimizer.param_groups)

    def _gradients(self, batch: Sequence[MicroBatch]) -> Tensor:
        """Compute clipped gradients of a step and return its mean loss in this process."""
        self.optimizer.zero_grad()
        total = torch.zeros((), device=self._device)
        for left, micro in zip(reversed(range(len(batch))), batch, strict=True):
            with self._accumulate(left == 0):
                with autocast(self._device, precision=self._config.precision):
                    loss = self._task.loss(self._model, micro) / len(batch)
                self._scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        self._clip_()
        return total

    def _clip_(self) -> None:
        """Limit the norm of all gradients together, noting what it was."""
        if self._scaler.is_enabled():
            self._scaler.unscale_(self.optimizer)  # type: ignore[arg-type]  # as above
        grads = [p.grad for p in self._params if p.grad is not None]
        self._norm = _total_norm(grads)
        limit = self._config.grad_clip
        if limit and not (self._device.type == "cpu" and self._norm + _CLIP_EPS <= limit):
            torch.nn.utils.clip_grads_with_norm_(self._params, limit, self._norm)

    def _nonfinite(self) -> NonfiniteError:
        return NonfiniteError(
            f"the gradients' norm is {float(self._norm)}; lower optimizer.lr, or leave such steps "
            "out with training.skip_nonfinite = true"
        )


def _total_norm(grads: list[Tensor]) -> Tensor:
    """Return the norm of gradients together: of whole ones where each process has a part."""
    if not grads or not hasattr(grads[0], "full_tensor"):
        return torch.nn.utils.get_total_norm(grads)
    # The norm of a divided tensor is a sum still to be made: here one for all tensors.
    norms: Tensor = torch.stack(torch._foreach_norm(grads)).full_tensor()  # type: ignore[attr-defined]
    total: Tensor = torch.linalg.vector_norm(norms)
    return total
