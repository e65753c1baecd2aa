"""Clients that train in lockstep: who with whom, and when which of them take steps, on which samples."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedgela.algorithms import Phase
from fedgela.training.interface import Job, Plan, batches, size_of_batch


def groups_of(jobs: Sequence[Job], batch_size: int, lanes: int, width: int) -> list[list[Job]]:
    """Who trains in lockstep with whom: at most `width` clients of one size of batch, whose losses read
    tensors of the same names and shapes (a method may have none for a first visit), in groups of about the
    same work, enough of them for every lane; the group with the longest client first."""
    alike: dict[object, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: -len(job.samples)):
        read = {(name, value.shape) for name, value in (job.vectors | job.references).items()}
        alike.setdefault((size_of_batch(len(job.samples), batch_size), frozenset(read)), []).append(job)
    groups: list[list[Job]] = []
    for same in alike.values():
        count = min(len(same), max(lanes, -(-len(same) // width)))
        made: list[list[Job]] = [[] for _ in range(count)]
        work = [0] * count
        for job in same:
            i = min((work[i], i) for i in range(count) if len(made[i]) < width)[1]
            made[i].append(job)
            work[i] += len(job.samples)
        groups += made
    return groups


class Group:
    """Clients that train together: when which of them take steps, and on which samples."""

    def __init__(self, plan: Plan, jobs: Sequence[Job], batch_size: int) -> None:
        self.plan = plan
        self.jobs = sorted(jobs, key=lambda job: -len(job.samples))
        self.batch = size_of_batch(len(self.jobs[0].samples), batch_size)
        # steps an epoch, longest first
        self.lengths = [len(job.samples) // max(self.batch, 1) for job in self.jobs]
        self.rows = sum(phase.epochs for phase in plan.phases) * self.lengths[0]
        self.index = torch.zeros(len(self.jobs), self.rows, self.batch, dtype=torch.int64)
        self._steps: list[Tensor] = []  # [steps, B] of each client, without the gaps
        for i, job in enumerate(self.jobs):
            row = epoch = 0
            mine = []
            for phase in plan.phases:
                at = row
                for _ in range(phase.epochs):
                    mine.append(batches(plan, job.client, epoch, job.samples, batch_size))
                    self.index[i, at : at + self.lengths[i]] = mine[-1]
                    at, epoch = at + self.lengths[i], epoch + 1
                row += phase.epochs * self.lengths[0]  # the others wait for the longest, then all go on
            self._steps.append(torch.cat(mine) if mine else self.index[i, :0])

    def seen(self, i: int) -> Tensor:
        """The samples of all steps of a client."""
        return self._steps[i].flatten()

    def pieces(self, phase: Phase) -> Iterator[tuple[int, int]]:
        """(v, count): the first v clients take `count` steps."""
        taken = 0
        for v in range(len(self.jobs), 0, -1):
            until = phase.epochs * self.lengths[v - 1]
            if until > taken:
                yield v, until - taken
                taken = until
