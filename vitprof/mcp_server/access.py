"""What a client of the server may do: which folders, which tools, and what a person is asked first."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit
from pydantic import BaseModel, Field

from vitprof.datasets.own.specs import ROOTS, roots
from vitprof.errors import ConfigError
from vitprof.masking import masked_command
from vitprof.names import harmless

NOWHERE = Path("/dev/null")
NOT_ALLOWED = "the user did not allow it, so nothing was run"


class Allowed(BaseModel):
    """What a person answers before anything is run."""

    allow: bool = Field(description="Yes: run it")


@dataclass(frozen=True)
class Access:
    """What the person who started the server allows."""

    folder: Path
    """The folder that the server was started in, resolved."""
    read_only: bool = False
    """Whether only tools that read are offered."""
    allow_run: bool = False
    """Whether commands are run without a question."""

    def folders(self) -> tuple[Path, ...]:
        """Returns the folders below which commands may run and read."""
        return (self.folder, *roots(local=False))

    def directory(self, text: str) -> Path:
        """Returns the folder that `text` names, from the server's own. Raises `ConfigError`."""
        path = self._inside("directory", self.folder / text)
        if not path.is_dir():
            raise ConfigError("directory", text, "there is no such folder")
        return path

    def file(self, field: str, text: str) -> Path:
        """Returns the file that `text` names, from the server's folder. Raises `ConfigError`."""
        path = self._inside(field, self.folder / text)
        if not path.is_file():
            raise ConfigError(field, text, "there is no such file")
        return path

    def check_command(self, command: Sequence[str], directory: Path) -> None:
        """Raises `ConfigError` for a command that is empty or names a file outside of the folders.

        Code in a command can still open any file of the user's: that is why a person is asked.
        """
        if not command or not command[0].strip():
            raise ConfigError("command", "", 'give the words of a command: ["python", "train.py"]')
        if any("\0" in word for word in command):
            raise ConfigError("command", "", "it has a character that no command can have")
        program, *words = command
        if not _is_installed(program):
            self._check_word(program, directory)
        for word in words:
            self._check_word(word, directory)

    def _check_word(self, word: str, directory: Path) -> None:
        """Raises `ConfigError` where a word of a command, or the value in `--name=value`, names what is
        there, outside of the folders."""
        for text in {word, word.partition("=")[2]} - {""}:
            path = _if_there(directory, text)
            if path is not None and path != NOWHERE:
                self._inside("command", path)

    def _inside(self, field: str, path: Path) -> Path:
        try:
            resolved = path.resolve()
        except (OSError, ValueError, RuntimeError):
            # a circle of links, or no name that a file can have
            raise ConfigError(field, str(path), "it cannot be followed") from None
        if not any(resolved.is_relative_to(folder) for folder in self.folders()):
            where = f"it is outside of {self.folder}, where this server was started"
            raise ConfigError(field, str(path), f"{where}, and of the folders in {ROOTS}")
        return resolved


def _if_there(directory: Path, text: str) -> Path | None:
    """Returns the path that a word names, from a directory; None where nothing is there."""
    try:
        path = directory / Path(text).expanduser()
        return path if path.exists() else None
    except (OSError, ValueError, RuntimeError):
        # code after -c is too long for a name; ~nobody
        return None


def _is_installed(program: str) -> bool:
    """Returns whether a program is one of PATH, called by its name, or of this Python's environment."""
    if "/" not in program:
        return shutil.which(program) is not None
    return Path(program).parent == Path(sys.executable).parent


def can_ask(context: Context[Any, Any]) -> bool:
    """Returns whether the client can ask its user a question."""
    capabilities = context.client_capabilities
    if capabilities is None or capabilities.elicitation is None:
        return False
    asked = capabilities.elicitation
    # without modes, as before there were some, it is a form
    return asked.form is not None or asked.url is None


def question(
    access: Access, context: Context[Any, Any], words: str, to_type: Sequence[str], *, always: bool
) -> Elicit[Allowed] | Allowed:
    """Returns what to ask a person before `words` is done, or that it is allowed already.

    `to_type`: vitprof's words of the same, for a person to type. `always`: ask also where runs are
    allowed, since files of the user's will be overwritten. Raises `ToolError` where nobody can be asked.
    """
    if access.allow_run and not always:
        return Allowed(allow=True)
    if not can_ask(context):
        typed = [word for word in to_type if word != "--json"]
        line = harmless(shlex.join(["vitprof", *masked_command(typed)]))
        way = "" if always else "start the server with --allow-run, or "
        raise ToolError(
            f"not allowed: this client cannot ask its user; {way}have the user type: {line}"
        )
    return Elicit(harmless(words), Allowed)
