"""``mars report``: from run directories to one page, figures, or Markdown."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from mars.commands.extras import REPORT, check_extra
from mars.commands.study_options import ReportOptions
from mars.config.errors import RefusedError
from mars.metrics.display import print_text, printable

if TYPE_CHECKING:
    from mars.report.analysis import Analysis

_PAGE = Path("report.html")


def report(options: ReportOptions, console: Console) -> None:
    """Do what the command line asks for."""
    check_extra(REPORT, command="report", extra="report")
    if options.markdown and options.out is not None:
        raise RefusedError(
            f"--markdown prints and makes no page; leave out --out {options.out}, or --markdown"
        )
    out = options.out or _PAGE
    if not options.markdown:
        _check_place(out)
    if options.figures is not None and options.figures.exists() and not options.figures.is_dir():
        raise RefusedError(f"--figures {options.figures} is a file; name a directory")
    # What draws takes a while to import: refusals come before it.
    from mars.report.analysis import analyze
    from mars.report.results import collect

    analysis = analyze(collect(options.runs, baseline=options.baseline, title=options.title))
    if options.markdown:
        _print_markdown(analysis, console)
    else:
        _make_page(analysis, out, console)
    if options.figures is not None:
        from mars.report.figures import write_figures

        written = write_figures(analysis, options.figures)
        if not options.markdown:
            _tell(console, "figures", f"{options.figures} ({len(written)} files)")


def _make_page(analysis: "Analysis", out: Path, console: Console) -> None:
    from mars.report.page import write_page
    from mars.report.table import show

    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RefusedError(f"--out {out} cannot be made: {error.strerror}") from error
    write_page(analysis, out)
    show(analysis, console)
    console.print()
    _tell(console, "page", str(out))


def _print_markdown(analysis: "Analysis", console: Console) -> None:
    from mars.report.markdown import markdown

    # Not through rich, which would wrap the rows of the table.
    console.file.write(printable(markdown(analysis), encoding=console.encoding))


def _tell(console: Console, label: str, value: str) -> None:
    print_text(console, Text.assemble((f"{label:8}", "dim"), value))


def _check_place(out: Path) -> None:
    """Refuse a place whose content a page must not replace."""
    if out.is_dir():
        raise RefusedError(f"--out {out} is a directory; name a file, such as {out / _PAGE}")
    if out.exists():
        # An old page may go; a run's records, given by mistake, may not.
        from mars.report.page import is_page

        if not is_page(out):
            raise RefusedError(f"--out {out} exists and is no page of ours; choose another name")
