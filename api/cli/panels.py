"""The panels of `wiretune --help`: commands grouped by purpose, with a newcomer's first."""

from typing import Any

from typer.core import TyperCommand, TyperGroup

PANELS = {
    "Start": ("demo", "init", "check", "run"),
    "Jobs": (
        *("submit", "list", "show", "watch", "wait", "logs", "explain"),
        *("compare", "plot", "export", "replay"),
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


class Panels(TyperGroup):
    """The group of all commands, in the order of `PANELS`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        order = [*_PANEL_OF, *(name for name in self.commands if name not in _PANEL_OF)]
        self.commands = {name: self.commands[name] for name in order}
        for name, command in self.commands.items():
            if isinstance(command, TyperCommand | TyperGroup):
                command.rich_help_panel = _PANEL_OF.get(name)
