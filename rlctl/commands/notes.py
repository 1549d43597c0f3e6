"""The notes of a sweep, in SWEEP_DIR/.sweep/: what became of each member, and whether to stop. Members in other processes write them.

What a member learned is in its own run folder; these notes are of one start of the sweep, and the next start clears them.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from enum import IntEnum
from pathlib import Path


class Stop(IntEnum):
    """How a sweep was asked to stop; a higher one wins."""

    no = 0
    failed = 1
    """No further member starts."""
    interrupted = 2
    """Those that train end in good order."""
    killed = 3
    """They end at once."""


@dataclass(frozen=True)
class Note:
    """What one start of a sweep did with a member."""

    number: int
    run_dir: str
    overrides: list[str]
    action: str = "starts"
    """starts, starts anew, goes on, skipped, refused."""
    status: int | None = None
    """Its exit status; None while it runs."""
    remark: str = ""


class Notes:
    """The folder of notes."""

    def __init__(self, sweep: Path):
        self.folder = sweep / ".sweep"

    def clear(self) -> None:
        """Forget an earlier start."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in [*self.folder.glob("*.json"), self.folder / "stop"]:
            path.unlink(missing_ok=True)

    def write(self, note: Note) -> None:
        """Write a member's note over its last one."""
        _replace(self.folder / f"{note.number}.json", json.dumps(asdict(note)))

    def read(self) -> dict[int, Note]:
        """number -> the member's note."""
        notes = (Note(**json.loads(p.read_text())) for p in self.folder.glob("*.json"))
        return {note.number: note for note in notes}

    def stop(self, how: Stop) -> None:
        """Ask the whole sweep to stop."""
        if how > self.stopped:
            _replace(self.folder / "stop", how.name)

    @property
    def stopped(self) -> Stop:
        """Whether it was asked to."""
        try:
            return Stop[(self.folder / "stop").read_text()]
        except FileNotFoundError:
            return Stop.no


def _replace(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text)
    aside.replace(path)
