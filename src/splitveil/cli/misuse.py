"""What is said of words that the command line does not know."""

from collections.abc import Sequence
from typing import Any

import typer


def misused(error: Any, app: typer.Typer, words: Sequence[str]) -> str:
    """One line: what typer found, and whose help to read."""
    command = error.ctx.command_path if error.ctx is not None else _command(app, words)
    return f"{' '.join(error.format_message().split()).rstrip('.')}; see `{command} --help`"


def _command(app: typer.Typer, words: Sequence[str]) -> str:
    """The command that these words begin with."""
    here: Any = typer.main.get_command(app)
    path = ["splitveil"]
    for word in words:
        here = getattr(here, "commands", {}).get(word)
        if here is None:
            break
        path.append(word)
    return " ".join(path)
