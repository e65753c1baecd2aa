"""Checkpoints are written beside the rounds: what a disk takes, a run does not wait for."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from fedgela.rounds import Progress
from fedgela.runfolder import FolderStore, RunFolder, Snapshot

SPARING = 10  # times as long as a checkpoint took to write: so much a run that is killed may lose
HELD = 2**30  # bytes of clients' models in memory: with more, a checkpoint is due, or waited for


class Saver:
    """One checkpoint at a time is on its way to the disk. Whoever leaves this waits for it; a process that is
    killed before it is there goes on from the one before."""

    def __init__(
        self, folder: RunFolder, store: FolderStore, every: int | None, note: Callable[[str], None]
    ) -> None:
        """`every` so many rounds, or by the time that a checkpoint takes."""
        self.folder, self.store, self.every, self.note = folder, store, every, note
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._writing: Future[None] | None = None
        self._began = 0.0  # when the last checkpoint was begun, by the clock of `time.monotonic`
        self._took = 0.0

    def is_due(self, round: int) -> bool:
        """Raises what the disk refused: what a run does after that is lost, however far the next one is."""
        if self._writing is not None and self._writing.done():
            self.wait()
        if self.every is not None:
            return round % self.every == 0
        if self.store.waiting_bytes > HELD:
            return True
        if self._writing is not None:
            return False
        return time.monotonic() - self._began >= SPARING * self._took

    def save(self, progress: Progress, seconds: float, data: str, settings: dict[str, Any]) -> None:
        self.wait()
        self._began = time.monotonic()
        snapshot = self.folder.snapshot(progress, self.store, seconds, data, settings)
        self._writing = self._thread.submit(self._write, snapshot)

    def _write(self, snapshot: Snapshot) -> None:
        self.folder.save(snapshot, self.store)
        self._took = time.monotonic() - self._began

    def wait(self) -> None:
        """Until all is on disk; raises what went wrong there."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.result()

    def __enter__(self) -> "Saver":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, reason: BaseException | None, trace: TracebackType | None
    ) -> None:
        """A run that ends for a reason of its own ends for that one, whatever the disk says."""
        try:
            self.wait()
        except Exception as error:
            if reason is None or reason is error:
                raise
            self.note(f"the last checkpoint could not be written ({error})")
        finally:
            self._thread.shutdown()
