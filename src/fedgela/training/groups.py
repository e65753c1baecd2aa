"""Clients that train in lockstep: how they are grouped, and the schedule of a group's steps."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedgela.algorithms import Phase
from fedgela.training.interface import Job, Plan, batches, size_of_batch


def groups_of(jobs: Sequence[Job], batch_size: int, lanes: int, width: int) -> list[list[Job]]:
    """Divide clients into groups that train in lockstep, if possible one for every lane.

    A group has at most `width` clients of the same batch size, whose losses read tensors of the same names
    and shapes (these may depend on whether a client has been visited before). Such clients are divided into
    groups of about the same number of samples. The group with the largest client comes first.
    """
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
    """Clients that train in lockstep: which of them take each step, and on which samples.

    `index` [clients, rows, B] holds the sample indices, one row a step. Clients are ordered by length, and in
    every phase all start at the same row: rows of shorter clients are left empty until the longest is done.
    """

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
                row += phase.epochs * self.lengths[0]
            self._steps.append(torch.cat(mine) if mine else self.index[i, :0])

    def seen(self, i: int) -> Tensor:
        """The samples of all steps of a client."""
        return self._steps[i].flatten()

    def pieces(self, phase: Phase) -> Iterator[tuple[int, int]]:
        """A phase's steps as pairs (v, count): the first v clients take `count` steps together."""
        taken = 0
        for v in range(len(self.jobs), 0, -1):
            until = phase.epochs * self.lengths[v - 1]
            if until > taken:
                yield v, until - taken
                taken = until
