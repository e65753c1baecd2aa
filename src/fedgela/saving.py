"""Checkpoints are written beside the rounds: what a disk takes, a run does not wait for."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from fedgela.rounds import Progress
from fedgela.runfolder import FolderStore, RunFolder


class Saver:
    """One checkpoint at a time is on its way to the disk. Whoever leaves this waits for it; a process that is
    killed before it is there goes on from the one before."""

    def __init__(self, folder: RunFolder, store: FolderStore, note: Callable[[str], None]) -> None:
        self.folder, self.store, self.note = folder, store, note
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._writing: Future[None] | None = None

    def save(self, progress: Progress, seconds: float, data: str, settings: dict[str, Any]) -> None:
        self.wait()
        snapshot = self.folder.snapshot(progress, self.store, seconds, data, settings)
        self._writing = self._thread.submit(self.folder.save, snapshot, self.store)

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
