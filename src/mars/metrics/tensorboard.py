"""Records as TensorBoard scalars, one chart a measure: ``train/loss``, ``val/loss`` ..."""

from pathlib import Path

from mars.config.errors import RefusedError
from mars.metrics.record import Record


class TensorBoardSink:
    """Writes event files.

    Args:
        directory: where they go; given to ``tensorboard --logdir``.
        resumed_from: the step of the checkpoint a run goes on from. What earlier files hold of
            later steps is hidden, so that no step shows twice.
    """

    def __init__(self, directory: Path, *, resumed_from: int | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise RefusedError(
                "TensorBoard is not installed: pip install 'mars-optimizer[track]', "
                "or leave metrics.tensorboard false"
            ) from error
        purge_step = None if resumed_from is None else resumed_from + 1
        self._writer = SummaryWriter(str(directory), purge_step=purge_step)

    def write(self, record: Record) -> None:
        """Add the record's measures and what the run had seen by then."""
        measures = {**record.measures(), record.unit: record.count}
        for name, value in measures.items():
            self._writer.add_scalar(f"{record.split}/{name}", value, record.step)

    def flush(self) -> None:
        """Write what is queued to the file."""
        self._writer.flush()

    def close(self) -> None:
        """Flush and close the event file."""
        self._writer.close()
