"""Time, messages and memory of every entry, and rounds to FedAvg's best GA."""

import math
import statistics

from fedgela.data import Federation
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.grids import Grid
from fedgela.measures import reaching_fedavg, total_traffic, traffic
from fedgela.models import Net, batchnorm_entries
from fedgela.nets import empty_net
from fedgela.progress import duration
from fedgela.report.context import Context, Part, Section
from fedgela.report.entries import Entry, Setting
from fedgela.report.paper_numbers import paper_number
from fedgela.report.saved_models import client_files


def costs(c: Context) -> Section:
    parts: list[Part] = [cost_table(c.setting, c.federation)]
    efficiency = efficiency_table(c.setting)
    if efficiency is not None:
        parts += ["<h4>Rounds to FedAvg's best GA</h4>\n", efficiency]
    return Section("Time, communication and memory", parts)


def cost_table(setting: Setting, federation: Federation | None) -> Grid:
    """Seconds and bytes; '-' where a folder does not tell."""
    records = [r for entry in setting.entries for run in entry.runs.values() for r in run.records]
    apart = all("training_seconds" in record for record in records)
    clock = "training_seconds" if apart else "seconds"  # the same for all that are held against each other
    fedavg = _seconds(setting.fedavg, clock) if setting.fedavg else None
    memory = any(_memory(entry) for entry in setting.entries)
    rows = []
    for entry in setting.entries:
        seconds = _seconds(entry, clock)
        wall = [held for run in entry.runs.values() if (held := (run.result or {}).get("wall_seconds"))]
        cells = {
            "method": entry.label,
            "time in all": duration(statistics.fmean(wall)) if wall else "-",
            "a round": duration(seconds) if seconds is not None else "-",
        }
        if setting.fedavg:
            cells["to FedAvg's"] = f"{seconds / fedavg:.2f}x" if seconds and fedavg else "-"
        cells |= zip(_MESSAGES, _message_cells(entry, federation), strict=True)
        cells["client keeps"] = _kept(entry)
        if memory:
            cells["peak memory"] = size(held) if (held := _memory(entry)) else "-"
        rows.append(cells)
    return Grid(list(rows[0]), [list(cells.values()) for cells in rows], _cost_note(setting, apart))


def _cost_note(setting: Setting, apart: bool) -> str:
    """What the columns are; `apart` where all runs tell the time of training apart from evaluation's."""
    parts = ["time in all: wall time of a run, mean over seeds, fine-tuning included"]
    if apart:
        parts.append("a round: the median, local training and aggregation without evaluation")
    else:
        parts.append("a round: the median, evaluation included, which not all of these runs tell apart")
    if setting.fedavg:
        parts.append("to FedAvg's: its multiple of FedAvg's")
    if setting.sites is not None:
        parts.append(
            "up and down: bytes of messages as they were sent, mean over a round's sites, and over all "
            "rounds; what a site keeps stays there; memory and device are the server's"
        )
    else:
        parts.append(
            "up and down: bytes of the tensors that travel, not compressed, as the method's own code "
            "declares them, and over all rounds and clients; client keeps: its model's file between rounds"
        )
    told = {(run.result or {}).get("device") for e in setting.entries for run in e.runs.values()}
    devices = sorted(str(device) for device in told if device)
    return "; ".join([*parts, *([f"computed on {'; '.join(devices)}"] if devices else [])])


def efficiency_table(setting: Setting) -> Grid | None:
    """Rounds to reach FedAvg's best GA, as the paper's Table 9; None where there is no FedAvg to reach."""
    fedavg = setting.fedavg
    if fedavg is None or len(setting.entries) < 2:
        return None
    rows, paper = [], False
    for entry in setting.entries:
        found = reaching_fedavg(_records(entry), _records(fedavg))
        reached = [rounds for rounds, _ in found.values()]
        ratios = [ratio for _, ratio in found.values() if ratio is not None]
        if not reached:
            continue
        in_paper = [paper_number(entry, metric) for metric in ("rounds", "speedup")]
        paper = paper or any(in_paper)
        told = [n for n in reached if n is not None]
        if len(told) == len(reached):
            cells = [f"{statistics.fmean(told):.1f}".removesuffix(".0"), f"{statistics.fmean(ratios):.2f}x"]
        else:
            never = "-" if entry.finished else "- so far"
            cells = [f"{never} ({len(told)} of {len(reached)} seeds)" if told else never, "-"]
        rows.append([entry.label, *cells, *(n[0].text if n else "" for n in in_paper)])
    if not rows:
        return None
    head = ["method", "rounds", "speed-up"] + (["paper: rounds", "paper: speed-up"] if paper else [])
    return Grid(
        head,
        rows if paper else [row[:3] for row in rows],
        "the first round with at least FedAvg's best GA of the same seed, mean over seeds; '-' where a seed "
        "never gets there; speed-up: FedAvg's own such round over the method's"
        + (" (the paper takes FedAvg's last round)" if paper else ""),
    )


def _records(entry: Entry) -> dict[int, list[Record]]:
    return {seed: run.records for seed, run in entry.runs.items()}


def _seconds(entry: Entry, clock: str) -> float | None:
    held = [r[clock] for run in entry.runs.values() for r in run.records if clock in r]
    return statistics.median(held) if held else None


_MESSAGES = ("up, client and round", "down", "up in all", "down in all", "parameters")


def _message_cells(entry: Entry, federation: Federation | None) -> list[str]:
    """Up and down by client and round, up and down in all, and the parameters."""
    net = _net(entry, federation)
    parameters = "-" if net is None else f"{sum(p.numel() for p in net.parameters()):,}"
    if entry.first.sites is not None:
        return [*_messages_sent(entry), parameters]
    if net is None or federation is None:
        return ["-"] * 4 + [parameters]
    e = entry.experiment
    stays = batchnorm_entries(net) if e.batchnorm == "local" else ()
    assert e.projection is not None
    one = traffic(e.algorithm, net.state_dict(), federation.train_counts[0], e.projection, e.seed, stays)
    totals = [total_traffic(one, run.records, federation.clients) for run in entry.runs.values()]
    return [
        size(one.up),
        size(one.down),
        *(size(round(statistics.fmean(t))) for t in zip(*totals, strict=True)),
        parameters,
    ]


def _net(entry: Entry, federation: Federation | None) -> Net | None:
    """None where its data or its model is not on this machine."""
    if federation is None:
        return None
    try:
        return empty_net(entry.experiment, federation.data)
    except UserError:
        return None


def _messages_sent(entry: Entry) -> list[str]:
    """Up and down of a run on sites, where bytes were counted."""
    ways = ("bytes_up", "bytes_down")
    counted = [[r for r in run.records if all(way in r for way in ways)] for run in entry.runs.values()]
    rounds = [record for records in counted for record in records if record.get("clients")]
    if not rounds:
        return ["-"] * 4
    one = [round(statistics.fmean(r[way] / len(r["clients"]) for r in rounds)) for way in ways]
    total = [round(statistics.fmean(sum(r[way] for r in records) for records in counted)) for way in ways]
    return [*map(size, one), *map(size, total)]


def _kept(entry: Entry) -> str:
    if entry.first.sites is not None:
        return "-"
    files = [path for run in entry.runs.values() for path in client_files(run).values()]
    return size(round(statistics.fmean(path.stat().st_size for path in files))) if files else "nothing"


def _memory(entry: Entry) -> int:
    """The most that any of its runs held; 0 where they do not tell."""
    held = [(run.result or {}).get("peak_memory_bytes") or 0 for run in entry.runs.values()]
    return int(max(held, default=0))


def size(count: int) -> str:
    """Bytes in words: 1.5 MB is 1,500,000 bytes."""
    if count == 0:
        return "0"
    power = min(int(math.log10(float(f"{count:.3g}")) / 3 + 1e-9), 4)  # 999,999 bytes are shown as 1 MB
    return f"{count / 1000**power:,.3g} {('B', 'kB', 'MB', 'GB', 'TB')[power]}"
