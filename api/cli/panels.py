"""The panels of `wiretune --help`: commands grouped by purpose, with a newcomer's first."""

import os
from importlib import import_module
from typing import Any

from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

PANELS = {
    "Start": ("demo", "init", "check", "run"),
    "Jobs": (
        *("submit", "list", "show", "watch", "wait", "logs", "explain"),
        *("compare", "plot", "export", "replay", "code"),
    ),
    "Act on jobs": (
        *("pause", "resume", "stop", "cancel", "retry", "extend", "steer", "clone"),
        *("priority", "label", "note", "archive", "unarchive", "delete"),
    ),
    "Choose a method": ("methods", "advise", "predict", "validate"),
    "The service": ("serve", "doctor", "page", "me", "queue"),
    "Operate it": ("keys", "quota", "audit", "clean", "backup", "restore", "migrate", "compact"),
}
_PANEL_OF = {command: panel for panel, commands in PANELS.items() for command in commands}


#: Commands for the machine of a service, and their modules. These are imported when a command is used: they need what a
#: machine that only asks a service may lack, such as `fcntl` on Windows, and take long to import.
LOCAL = {
    "doctor": "api.cli.doctor",
    "clean": "api.cli.clean_command",
    **dict.fromkeys(("backup", "restore", "migrate", "compact"), "api.cli.database_commands"),
}


class Panels(TyperGroup):
    """The group of all commands, in the order of `PANELS`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        return [*_PANEL_OF, *(name for name in self.commands if name not in _PANEL_OF)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or None if there is none on this machine."""
        if cmd_name in LOCAL and cmd_name not in self.commands:
            try:
                self.commands.update(get_group(import_module(LOCAL[cmd_name]).app).commands)
            except ImportError:
                if os.name == "posix":
                    raise
        command = super().get_command(ctx, cmd_name)
        if isinstance(command, TyperCommand | TyperGroup):
            command.rich_help_panel = _PANEL_OF.get(cmd_name)
        return command
