"""A reporter that shows nothing. Errors are not its business: they go to stderr by `print_error`."""

from __future__ import annotations

from rlctl.report import Plan, Step, Summary, Warning


class QuietConsole:
    """Takes everything, prints nothing."""

    def start(self, plan: Plan) -> None:
        pass

    def phase(self, name: str, done: int = 0, total: int = 0) -> None:
        pass

    def step(self, step: Step) -> None:
        pass

    def warn(self, warning: Warning) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def finish(self, summary: Summary) -> None:
        pass

    def close(self) -> None:
        pass
