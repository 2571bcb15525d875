"""``mars export``: a run as a Hugging Face folder."""

from rich.console import Console
from rich.text import Text

from mars.commands.eval_options import ExportOptions
from mars.commands.extras import check_extra
from mars.config.errors import RefusedError


def export(options: ExportOptions, console: Console) -> None:
    """Do what the command line asks for."""
    if not (options.run / "run.toml").exists():
        raise RefusedError(f"{options.run} is not a run directory: it has no run.toml")
    if options.out.exists():
        raise RefusedError(f"--out {options.out} exists; name a folder that does not")
    check_extra(("safetensors",), command="export", extra="eval")
    # Torch is imported from here on: refusals come at once.
    from mars.evaluation.export import export_run
    from mars.evaluation.subject import open_subject
    from mars.metrics.display import print_text

    def tell(line: str) -> None:
        print_text(console, Text(line))

    subject = open_subject(str(options.run), step=options.step, tell=tell)
    export_run(subject, options.out)
    tell(f"Step {subject.step} of {options.run} is in {options.out}. To open it:")
    opened = f'transformers.AutoModelForCausalLM.from_pretrained("{options.out}")'
    print_text(console, Text(f"  {opened}", style="cyan"))
