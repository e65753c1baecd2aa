"""Chooses the engine, and how many clients it trains at once, from the model, the clients and the machine.

Never by timing: the same config on the same machine is always computed in the same way. What the config sets
itself is kept.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedgela.config import Experiment
from fedgela.data import Dataset, Federation
from fedgela.errors import UserError
from fedgela.imports import is_ours
from fedgela.models import Net
from fedgela.training.eager import EagerEngine
from fedgela.training.interface import Engine
from fedgela.training.lane import draws_by_itself
from fedgela.training.lanes import LaneEngine
from fedgela.training.optimiser import Optimiser
from fedgela.training.recurrent import is_recurrent
from fedgela.training.stacking import fits
from fedgela.training.workers import WorkerEngine

# with fewer operations a step, most of its time goes into Python and kernel launches: clients go together
TINY_STEP_CPU, TINY_STEP_GPU = 3e7, 5e9
WIDEST_CPU, WIDEST_GPU = 8, 16
GPU_LANES = 4  # more of them only take memory
WORTH_WORKERS = 2e10  # operations of a whole run from which worker processes pay: about a second's
ONE_BY_ONE = ("eager", "flower-simulation")  # one client at a time in a process; Flower has several processes
SECONDS_WORTH_COMPILING = 300.0
OPERATIONS_A_SECOND = 2e14  # of a busy GPU

# layers that vmap handles well; with any other layer clients are trained one by one
BATCHABLE = (
    nn.Linear,
    nn.ReLU,
    nn.MaxPool2d,
    nn.Flatten,
    nn.Identity,
    nn.Embedding,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.modules.batchnorm._BatchNorm,
)


@dataclass(frozen=True)
class Work:
    """How much there is to do."""

    step: float  # floating-point operations of one client's training step
    run: float  # the same of all local training in the run
    clients: int  # how many train in a round
    largest: float  # the largest client's samples, relative to all that are trained on in a round


def choose(experiment: Experiment, net: Net, federation: Federation) -> Experiment:
    """The experiment with engine, lanes, width, compile, precision and threads filled in."""
    e = experiment
    gpu = torch.device(e.device).type == "cuda"
    engine = _engine(e, net)
    work = _work(e, net, federation)
    lanes, width = (1, 1) if engine in ONE_BY_ONE else (_on_gpu if gpu else _on_cpu)(e, net, work)
    lanes, width = e.lanes or lanes, e.width or width
    if width > 1 and e.precision == "bf16" and not gpu:
        raise UserError("width: in bf16 clients train one by one on a CPU; leave out width, or precision")
    if engine == "lanes" and draws_by_itself(net) and (width > 1 or (gpu and lanes > 1)):
        raise UserError(
            f"{'width' if width > 1 else 'lanes'}: clients have draws of their own in this model (dropout), "
            "and train one by one; leave it out"
        )
    if gpu and e.precision == "bf16" and is_recurrent(net):
        raise UserError(
            "precision: torch would compute this model's recurrent layers in fp16, not in bf16; use fp32"
        )
    compiled = e.compile
    if compiled is None:
        long = work.run / OPERATIONS_A_SECOND > SECONDS_WORTH_COMPILING
        compiled = gpu and width == 1 and long and not _is_fused(net)
    # further lanes are processes on other cores, and a second thread only slows the smallest nets down
    alone = lanes > 1 or work.step < TINY_STEP_CPU
    return e.with_(
        engine=engine,
        lanes=lanes,
        width=width,
        compile=compiled and engine == "lanes",
        precision=e.precision or ("bf16" if gpu and engine != "eager" and not is_recurrent(net) else "fp32"),
        threads=e.threads or (1 if alone and not gpu else cores()),
    )


def _engine(e: Experiment, net: Net) -> Literal["lanes", "eager", "flower-simulation"]:
    """Lanes, unless only the eager engine can train this net: a UserError then if lanes were asked for."""
    if e.engine in ("eager", "flower-simulation"):
        return e.engine
    why_not = None
    if _shares_weights(net):
        why_not = "a model that has one parameter or buffer in two places"
    elif not net.backbone.takes_weights:
        why_not = (
            "a model whose parameters are in a list or a lambda or have hooks, or that has activation "
            "checkpoints"
        )
    if why_not is None:
        return "lanes"
    if e.engine == "lanes":
        raise UserError(f"engine: lanes cannot train {why_not}; eager can")
    return "eager"


def _work(experiment: Experiment, net: Net, federation: Federation) -> Work:
    sizes = federation.train.sizes
    able = int((sizes > 0).sum())
    clients = min(experiment.sample or 1, able)
    in_a_round = float(sizes.sum()) * (clients / max(1, able))  # samples of those clients, on average
    each = training_operations(net, federation)
    return Work(
        step=each * min(experiment.batch_size, int(sizes.max())),
        run=each * (in_a_round * experiment.epochs * experiment.rounds),
        clients=clients,
        largest=float(sizes.max()) / max(1.0, in_a_round),
    )


def training_operations(net: Net, federation: Federation) -> float:
    """Floating-point operations of training on one sample: the backward pass costs two forward ones."""
    data = federation.data
    device = next(net.parameters()).device
    was_training = net.training
    net.eval()
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        net(data.inputs(data.x_train[:1].to(device)))
    net.train(was_training)
    return 3.0 * counter.get_total_flops()


def _on_gpu(experiment: Experiment, net: Net, work: Work) -> tuple[int, int]:
    if draws_by_itself(net):
        return 1, 1  # a device has one random generator: it can be seeded for one client at a time only
    if work.step < TINY_STEP_GPU and batchable(net, by_our_kernels=True):
        lanes = 1 if work.clients <= WIDEST_GPU else 2
        return lanes, min(WIDEST_GPU, -(-work.clients // lanes))
    return min(GPU_LANES * max(1, _gpus(experiment)), work.clients), 1


def _on_cpu(experiment: Experiment, net: Net, work: Work) -> tuple[int, int]:
    processors = experiment.threads or cores()
    tiny = work.step < TINY_STEP_CPU
    worth = work.run > WORTH_WORKERS and work.clients > 1 and processors > 1
    # where one client has far more samples than others, all would wait for the one thread that trains it
    even = max(work.largest, 1 / processors) * processors < 1.3
    lanes = min(processors, work.clients) if worth and (tiny or even) else 1
    # autocast has no effect under vmap on a CPU, so in bf16 clients train one by one
    if tiny and batchable(net) and not draws_by_itself(net) and experiment.precision != "bf16":
        return lanes, min(WIDEST_CPU, -(-work.clients // lanes))
    return lanes, 1


def batchable(net: Net, by_our_kernels: bool = False) -> bool:
    """Whether several clients' nets can be computed at once, under vmap."""
    if not net.backbone.stacks:
        return False
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            if by_our_kernels and not fits(part):
                return False
        # this package's own modules without inner modules, such as an L2 norm, are plain tensor code
        elif not (any(part.children()) or isinstance(part, BATCHABLE) or is_ours(part)):
            return False
    return True


def _shares_weights(net: Net) -> bool:
    """Whether some parameter or buffer is in the net twice. A state dict has it under both names, and lanes,
    which train the entries of a state dict, would let the two drift apart."""
    parameters = len(list(net.parameters())) < len(list(net.named_parameters(remove_duplicate=False)))
    return parameters or len(list(net.buffers())) < len(list(net.named_buffers(remove_duplicate=False)))


def _is_fused(net: Net) -> bool:
    """Whether our kernels already fuse what a compiler would, as they do for BatchNorm (not GroupNorm)."""
    return net.backbone.fused and any(isinstance(part, nn.BatchNorm2d) for part in net.backbone.modules())


def _gpus(experiment: Experiment) -> int:
    return torch.cuda.device_count() if experiment.device == "cuda" else 1


def devices_of(experiment: Experiment) -> list[torch.device]:
    """Where lanes run: `cuda` means all of the machine's GPUs, `cuda:1` that one."""
    if experiment.device == "cuda" and experiment.engine == "lanes":
        return [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    return [torch.device(experiment.device)]


def make_engine(experiment: Experiment, net: Net, data: Dataset, note: Callable[[str], None]) -> Engine:
    """The engine that `choose` has chosen."""
    e = experiment
    optimiser = Optimiser(e.optimizer, e.momentum, e.weight_decay, e.clip_norm)
    net.in_bf16 = e.precision == "bf16"
    torch.set_num_threads(e.threads or 1)
    torch.backends.cudnn.allow_tf32 = False  # fp32 is fp32
    if e.engine == "eager":
        return EagerEngine(net, data, torch.device(e.device), optimiser, e.batch_size)
    devices = devices_of(e)
    lanes, width = e.lanes or 1, e.width or 1
    workers = devices[0].type == "cpu" and lanes > 1
    engine = LaneEngine(
        net,
        data,
        devices,
        optimiser,
        e.batch_size,
        lanes=1 if workers else lanes,
        width=width,
        compiled=bool(e.compile),
        note=note,
    )
    return WorkerEngine(engine, lanes) if workers else engine


def cores() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
