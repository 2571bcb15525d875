"""How much variance MARS removes from the gradients of a run: bias and variance, mode by mode.

The room replays a run, draws fresh micro-batches along its path and compares what each estimator
makes of them with the gradient of a large batch. It reads a run directory and writes one file
there, ``diagnosis.json``. What is shown of it is for the commands and the report.
"""
