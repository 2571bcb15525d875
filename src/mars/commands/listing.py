"""What ``mars train --list`` and ``--help`` show of presets and keys."""

from rich.console import Console
from rich.table import Table

from mars.config import presets
from mars.config.load import documentation


def show_presets(console: Console) -> None:
    """Print the presets, one a line."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for name in presets.names():
        table.add_row(name, presets.describe(name))
    console.print(table)


def show_keys(console: Console) -> None:
    """Print every key of a config with its type, default and meaning."""
    console.print("Keys of the config, for --set and TOML files:\n", markup=False)
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    for entry in documentation():
        default = f" (default: {entry.default})" if entry.default else ""
        table.add_row(entry.key, f"{entry.doc} [dim]{entry.takes.capitalize()}.{default}[/dim]")
    console.print(table)
