"""Files that a command is asked to write; one that cannot be written is refused before the work begins."""

from __future__ import annotations

import os
from pathlib import Path

import typer

from prefixcache.errors import OptionError

STANDARD_STREAM = "-"


def check_writable(option: str, name: str | None) -> None:
    """Long work should not end in a file name that cannot be written. Raises `OptionError`."""
    if name in (None, STANDARD_STREAM):
        return
    file = Path(str(name))
    if not file.parent.is_dir():
        raise OptionError(f"{option} {name}: expected a file in a folder that exists, or -")
    if file.is_dir():
        raise OptionError(f"{option} {name}: cannot be written: Is a directory")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise OptionError(f"{option} {name}: cannot be written: Permission denied")


def write(option: str, name: str, text: str) -> None:
    """Write the text and a line end to the file, or to standard output. Raises `OptionError`.

    A regular file appears whole or not at all, whatever ends this process.
    """
    if name == STANDARD_STREAM:
        typer.echo(text)
        return
    file = Path(name)
    whole = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        if file.exists() and not file.is_file():  # a pipe or a device
            file.write_text(text + "\n", encoding="utf-8")
            return
        whole.write_text(text + "\n", encoding="utf-8")
        whole.replace(file)
    except OSError as error:
        raise OptionError(f"{option} {name}: cannot be written: {error.strerror or error}") from None
