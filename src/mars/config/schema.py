"""What a run is: one frozen dataclass per part, `Run` on top.

The documentation of a key stands beside it, as its metadata; ``mars train --help`` prints it. A
value of None means that the part chooses, as the documentation says.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

T = TypeVar("T")

OptimizerName = Literal[
    "mars-adamw", "mars-lion", "mars-shampoo", "mars-m", "adamw", "nadamw", "lion", "muon"
]


def _key(default: T, doc: str) -> T:
    """Return a field with its default and documentation, typed as the default."""
    made: Any = field(default=default, metadata={"doc": doc})  # dataclasses type fields so too
    return made  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where the tokens or images come from."""

    path: str = _key("data/stdlib", "Folder that `mars prepare` made.")
    prepare: Literal["stdlib", "digits"] | None = _key(
        None, "Text or images to prepare at the path by itself if nothing is there."
    )
    workers: int = _key(1, "Text: threads that read batches ahead; 0 reads in the loop.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """The shape of a GPT-2."""

    layers: int = _key(12, "Transformer blocks.")
    heads: int = _key(12, "Attention heads; they divide the width.")
    width: int = _key(768, "Size of the residual stream.")
    context_length: int = _key(1024, "Tokens a sequence.")
    vocab_size: int = _key(50304, "Rows of the tied embedding; at least the corpus's tokens.")
    bias: bool = _key(False, "Biases in linear layers and norms.")
    dropout: float = _key(0.0, "Dropout after embedding, attention and projections.")
    scale_attention_by_layer: bool = _key(
        True, "Divide attention logits by the layer's number too, as the paper does."
    )
    init_from: str | None = _key(
        None, "Run or Hugging Face folder whose weights to begin with. (default: random weights)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """Images in place of text, and what looks at them in place of a GPT-2."""

    network: Literal["resnet18", "vit"] | None = _key(
        None, "What classifies images; without it the run is about text."
    )
    channels: int | None = _key(
        None,
        "resnet18: channels of its first stage (default: 64); vit: size of its residual stream "
        "(default: 192).",
    )
    blocks: int | None = _key(None, "vit: transformer blocks. (default: 6)")
    attention_heads: int | None = _key(None, "vit: heads; they divide the channels. (default: 3)")
    patch_size: int | None = _key(None, "vit: height and width of a patch. (default: 4)")
    crop_padding: int = _key(4, "Pixels around an image that its random crop may reach into.")
    flip: bool = _key(True, "Mirror every second training image, at random.")
    test_flip: bool = _key(
        False, "Validate on the mean of image and mirror image too, as accuracy_flip."
    )
    target_accuracy: float = _key(0.94, "Accuracy whose time is recorded, as seconds_to_94.")
    channels_last: bool | None = _key(
        None, "resnet18: keep channels innermost in memory. (default: from 8 channels on)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimizer:
    """The optimizer and its options; one that the optimizer does not have is refused."""

    name: OptimizerName = _key("mars-adamw", "Which optimizer.")  # noqa: RUF009  # a Literal
    lr: float = _key(3e-3, "Peak learning rate of matrices.")
    weight_decay: float = _key(0.0, "Decoupled decay of matrices and embeddings.")
    betas: tuple[float, float] | None = _key(
        None, "Decay rates of the moments; Muon and MARS-M use the first. (default: per optimizer)"
    )
    eps: float | None = _key(None, "Added to the denominator. (default: 1e-8)")
    lr_1d: float | None = _key(
        None,
        "Peak learning rate of what runs AdamW beside MARS or Muon: vectors, and under the matrix "
        "rules embeddings. (default: 3e-3 for MARS, lr for Muon)",
    )
    betas_1d: tuple[float, float] | None = _key(None, "Betas of that AdamW. (default: 0.9, 0.95)")
    weight_decay_1d: float | None = _key(None, "Decay of that AdamW. (default: 0.1 for MARS)")
    fused: bool = _key(True, "Fused or compiled steps where the optimizer has them.")
    gamma: float | None = _key(None, "MARS: strength of the correction. (default: 0.025)")
    exact: bool | None = _key(None, "MARS: evaluate each batch at the previous point too.")
    optimize_1d: bool | None = _key(None, "MARS: correct vectors too. (default: false)")
    convolutions: Literal["matrices", "vectors"] | None = _key(
        None,
        "MARS: train convolutions as matrices, or as the authors' script does, with the AdamW of "
        "vectors. (default: matrices)",
    )
    clip: Literal["tensor", "global", "none"] | None = _key(
        None, "MARS: limit the corrected gradient per tensor, of all, or not. (default: tensor)"
    )
    max_norm: float | None = _key(None, "MARS: that limit. (default: 1.0)")
    second_moment: Literal["corrected", "gradient"] | None = _key(
        None, "MARS-AdamW: what v is built from. (default: corrected)"
    )
    lean: bool | None = _key(None, "MARS: store no previous gradient. (default: false)")
    last_grad_dtype: Literal["float32", "bfloat16"] | None = _key(
        None, "MARS: dtype of the stored previous gradient. (default: that of the moments)"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How learning rates change over the run."""

    kind: Literal["cosine", "linear", "wsd", "multistep", "constant"] = _key(
        "cosine", "Shape after the warm-up; wsd is warm-up, stable, decay."
    )
    warmup_steps: int = _key(0, "Steps of linear warm-up.")
    min_lr: float = _key(0.0, "Where cosine, linear and wsd end, as a rate of matrices.")
    decay_fraction: float = _key(0.2, "wsd: the last part of the run, which decays.")
    milestones: tuple[float, ...] = _key((0.5, 0.75), "multistep: fractions of the run.")
    decay_factor: float = _key(0.1, "multistep: what the rate is multiplied by at each.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The loop."""

    steps: int = _key(100_000, "Optimizer steps.")
    batch_size: int = _key(480, "Sequences or images a step, over all processes and micro-batches.")
    micro_batch_size: int | None = _key(
        None,
        "Sequences or images at a time in one process; the rest accumulates. (default: its share)",
    )
    parallel: Literal["ddp", "fsdp2", "hsdp"] | None = _key(
        None,
        "How the processes of torchrun share a run: each has the whole model, a part of it, or "
        "groups of them have it. (default: ddp)",
    )
    replicas: int | None = _key(
        None, "hsdp: groups of processes that have the whole model. (default: one a node)"
    )
    timeout_seconds: int = _key(
        60, "How long processes wait for each other before they call one lost."
    )
    grad_clip: float = _key(1.0, "Largest norm of all gradients together; 0 is no limit.")
    precision: Literal["float32", "bfloat16", "float16"] = _key("float32", "Autocast dtype.")
    compile: bool = _key(False, "Compile the model.")
    activation_checkpointing: bool = _key(False, "Recompute activations in backward.")
    device: str = _key("auto", "auto, cpu, cuda, cuda:1, mps ...")
    validate_every: int = _key(1000, "Steps between validations; the last step is always one.")
    validation_sequences: int = _key(
        1024,
        "Sequences or images validated on: the same ones each time, spread over the split.",
    )
    skip_nonfinite: bool = _key(
        True, "Leave out and count a step whose gradients are not finite; false stops the run."
    )
    stop_diverged: bool = _key(
        False,
        "End a run whose loss, after the warm-up and a tenth of the steps, stays above that of "
        "the first step, or is not finite, for 20 steps in a row.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What is kept of a run."""

    every: int = _key(1000, "Steps between checkpoints; the last step is always one.")
    keep: int = _key(2, "Newest checkpoints kept.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """What is measured and where it goes, beside metrics.jsonl."""

    log_every: int = _key(10, "Steps between training records.")
    measures: bool = _key(
        True, "MARS: record correction ratio, gradient cosine and clip rate with each record."
    )
    tensorboard: bool = _key(False, "Write TensorBoard events to the run directory.")
    wandb: Literal["off", "offline", "online"] = _key("off", "Weights & Biases.")
    wandb_project: str = _key("mars", "Its project.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything that decides what a run does."""

    name: str = _key("run", "Name of the run, and of its directory unless --out is given.")
    description: str = _key("", "A sentence for people.")
    seed: int = _key(0, "Seed of initial weights, data order and dropout.")
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    training: Training = field(default_factory=Training)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    metrics: Metrics = field(default_factory=Metrics)
    vision: Vision = field(default_factory=Vision)

    @property
    def count_per_step(self) -> int:
        """The tokens of a step, or its images."""
        length = 1 if self.vision.network else self.model.context_length
        return self.training.batch_size * length
