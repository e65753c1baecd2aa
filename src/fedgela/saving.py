"""Checkpoints are written beside the rounds: what a disk takes, a run does not wait for."""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from fedgela.rounds import Progress
from fedgela.runfolder import FolderStore, RunFolder


class Saver:
    """One checkpoint at a time is on its way to the disk. Whoever closes this waits for it; a process that is
    killed before it is there goes on from the one before."""

    def __init__(self, folder: RunFolder, store: FolderStore) -> None:
        self.folder, self.store = folder, store
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

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._thread.shutdown()
