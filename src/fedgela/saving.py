"""Writes checkpoints in a thread, so that a run does not wait for the disk."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from fedgela.checkpoints import Checkpoints, FolderStore, Reached, Snapshot
from fedgela.rounds import Progress

SPARING = 10  # a checkpoint is due once so many times the seconds have passed that the last one took to write
NOTICED = 2.0  # seconds of waiting from which somebody would wonder why nothing happens
HELD = 2**30  # bytes of clients' models in memory from which a checkpoint is due in any case


class Saver:
    """Writes one checkpoint at a time. On leaving its context, for whatever reason, the last round that was
    reached is written and waited for; a run that is killed is resumed from the last complete checkpoint."""

    def __init__(
        self,
        checkpoints: Checkpoints,
        store: FolderStore,
        origin: Mapping[str, Any],
        every: int | None,
        note: Callable[[str], None],
    ) -> None:
        """A checkpoint is written `every` so many rounds, or, if None, so often that it takes little time;
        for `origin` see Checkpoints.snapshot."""
        self.checkpoints, self.store, self.origin = checkpoints, store, origin
        self.every, self.note = every, note
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._writing: Future[None] | None = None
        self._reached: Reached | None = None  # what no checkpoint has yet
        self._began = 0.0  # when the last checkpoint was begun, by the clock of `time.monotonic`
        self._took = 0.0

    def is_due(self, round: int) -> bool:
        """Whether to write a checkpoint after this round. An error in writing the last one is raised here:
        what the run does after it would be lost."""
        if self._writing is not None and self._writing.done():
            self.wait()
        if self.every is not None:
            return round % self.every == 0
        if self.store.waiting_bytes > HELD:
            return True
        if self._writing is not None:
            return False
        return time.monotonic() - self._began >= SPARING * self._took

    def reached(self, progress: Progress, seconds: float) -> None:
        """A round is over, with its metrics: a run that ends from here on goes on with the next one."""
        self._reached = self.checkpoints.reached(progress, self.store, seconds)

    def save(self) -> None:
        """The last round that was reached, where no checkpoint has it yet."""
        self.wait()
        if self._reached is not None:
            self._began = time.monotonic()
            snapshot = self.checkpoints.snapshot(self._reached, self.store, self.origin)
            self._writing = self._thread.submit(self._write, snapshot)
            self._reached = None

    def _write(self, snapshot: Snapshot) -> None:
        self.checkpoints.save(snapshot, self.store)
        self._took = time.monotonic() - self._began

    def wait(self) -> None:
        """Wait until the last checkpoint is written; raises an error of writing it. After one that failed no
        other is written."""
        if self._writing is not None:
            wait([self._writing])  # may be interrupted: it is still being written then
            writing, self._writing = self._writing, None
            if writing.exception() is not None:
                self._reached = None
            writing.result()

    def __enter__(self) -> "Saver":
        return self

    def __exit__(self, kind: object, reason: BaseException | None, trace: object) -> None:
        """An error that ended the run is raised before one of the last checkpoint, which is noted then."""
        try:
            self.save()
            if self._writing is not None and self._took > NOTICED:
                self.note(f"a last checkpoint is being written; the one before took {self._took:.0f} s")
            self.wait()
        except Exception as error:
            if reason is None or reason is error:
                raise
            self.note(f"the last checkpoint could not be written ({error})")
        finally:
            self._thread.shutdown()
