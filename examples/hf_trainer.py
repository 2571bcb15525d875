"""Hugging Face Trainer: hand it a MARS object, or the class and its arguments.

The model is a GPT-2 of two layers, built from a config; its text counts upwards. No downloads.

Run: python examples/hf_trainer.py
"""

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, PrinterCallback, Trainer, TrainingArguments
from transformers.optimization import get_constant_schedule_with_warmup

import mars

OPTIONS = {"lr": 6e-3, "lr_1d": 3e-3, "weight_decay_1d": 0.0}
QUIET = {"disable_tqdm": True, "report_to": "none", "log_level": "error", "logging_steps": 1}


def build(dropout: float = 0.1) -> GPT2LMHeadModel:
    """Return a tiny GPT-2, the same at every call."""
    torch.manual_seed(0)
    size = {"vocab_size": 32, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    rates = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    return GPT2LMHeadModel(GPT2Config(**size, **rates, bos_token_id=0, eos_token_id=0))


def sequences(count: int) -> list[dict[str, torch.Tensor]]:
    """Return sequences that count upwards from a random token."""
    starts = torch.randint(32, (count, 1), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in (starts + torch.arange(16)) % 32]


def trainer(way: str, folder: str, *, dropout: float = 0.1, **arguments) -> Trainer:
    """Return a Trainer that was given an optimizer and its schedule, or a class."""
    model = build(dropout)
    if way == "optimizers":
        optimizer = mars.MARS(mars.param_groups(model), mars_type="mars-m", **OPTIONS)
        given = {"optimizers": (optimizer, get_constant_schedule_with_warmup(optimizer, 5))}
    else:  # the Trainer makes groups and schedule from weight_decay, warmup_steps ...
        given = {"optimizer_cls_and_kwargs": (mars.MARS, OPTIONS)}
    args = TrainingArguments(folder, use_cpu=True, **{"save_strategy": "no", **QUIET, **arguments})
    made = Trainer(model, args, train_dataset=sequences(64), **given)
    made.remove_callback(PrinterCallback)
    return made


def main() -> None:
    """Train in both ways and print the first and the last loss of each."""
    for way in ("optimizers", "optimizer_cls_and_kwargs"):
        with tempfile.TemporaryDirectory() as folder:
            run = trainer(way, folder, max_steps=60, weight_decay=0.01, warmup_steps=5)
            run.train()
        losses = [record["loss"] for record in run.state.log_history if "loss" in record]
        print(f"{way:24}  loss {losses[0]:.3f} -> {losses[-1]:.3f}")


if __name__ == "__main__":
    main()
