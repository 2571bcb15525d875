"""The commands of ``mars``: options as dataclasses, and what each does with them.

Importing an options module does not import torch, so that ``--help`` and refusals come at once.
"""
