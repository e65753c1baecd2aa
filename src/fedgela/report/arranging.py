"""How runs become entries, and entries settings."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from fedgela.algorithms import ALGORITHMS
from fedgela.config import READING, SPLITTING, comparable, plain_table
from fedgela.report.entries import FOLLOWS, Entry, Setting
from fedgela.runs import HARDWARE
from fedgela.saved.runs import Note, Run

_READ = itemgetter(*(key for key in READING if key not in ("data_dir", "augment")))
_SPLIT = itemgetter(*SPLITTING)
_METHODS = list(ALGORITHMS)  # in the order of the paper's tables


def arrange(runs: Sequence[Run], note: Note) -> list[Setting]:
    """Runs that differ in nothing but the seed and the hardware are one entry; entries on the same
    federation are one setting. `note` is told of copies of a run, and of data that has changed."""
    settings: dict[tuple[Any, ...], Setting] = {}  # by what runs must share to be compared
    entries: dict[tuple[Any, ...], Entry] = {}  # by that, and by all that makes an experiment another one
    for run, split in zip(runs, _splits(runs), strict=True):
        of_setting = _of_setting(run, split, runs)
        of_entry = (*of_setting, _unseeded(run))
        if of_entry not in entries:
            entries[of_entry] = Entry(run.name)
            settings.setdefault(of_setting, Setting(split)).entries.append(entries[of_entry])
        _add(run, entries[of_entry], note)
    for setting in settings.values():
        setting.entries.sort(key=_place_in_the_paper)
        _tell_apart(setting.entries)
    titles = [setting.title for setting in settings.values() if setting.sites is None]
    for title in dict.fromkeys(title for title in titles if titles.count(title) > 1):
        note(f"{title}: not all runs of this title are of the same data; they are shown apart")
    return list(settings.values())


def _of_setting(run: Run, split: str | int, runs: Sequence[Run]) -> tuple[Any, ...]:
    """The same for runs that can be compared."""
    shared = (split, _content(run, runs), *comparable(run.experiment).items())
    return shared if run.sites is None else (*shared, run.sites.terms.federation, run.sites.test_data)


def _add(run: Run, entry: Entry, note: Note) -> None:
    """Of two copies of one experiment the finished one is shown, or else the one with more rounds."""
    held = entry.runs.get(run.seed)
    if held is None:
        entry.runs[run.seed] = run
        return
    kept, other = (run, held) if _how_far(run) > _how_far(held) else (held, run)
    entry.runs[run.seed] = kept
    note(f"{other.path}: is the same experiment as {kept.path}; it is left out")


def _how_far(run: Run) -> tuple[bool, int]:
    return run.result is not None, run.rounds_done


def _place_in_the_paper(entry: Entry) -> int:
    """Own methods come last."""
    return _METHODS.index(entry.method) if entry.method in _METHODS else len(_METHODS)


def _content(run: Run, runs: Sequence[Run]) -> str | None:
    """The fingerprint of the run's data, since a file may have changed between two runs. A run that does not
    tell it counts as made on the others' data. Where samples are held out, or clients are drawn from those
    that the data has, every split has a fingerprint of its own: there it counts only if runs of one split
    differ in it, which tells that the file has changed."""
    e = run.experiment
    if run.sites is not None:
        return None
    same = [r for r in runs if r.sites is None and _READ(dict(r.experiment)) == _READ(dict(e))]
    if (e.partition == "natural" or e.validation) and not _changed(same):
        return None
    if run.data_fingerprint is not None:
        return run.data_fingerprint
    return next((told for r in same if (told := r.data_fingerprint) is not None), None)


def _changed(runs: Sequence[Run]) -> bool:
    """Whether runs of one split of the same file are of different data."""
    told: dict[tuple[Any, ...], str] = {}  # by split
    known = ((_SPLIT(dict(run.experiment)), run.data_fingerprint) for run in runs)
    return any(told.setdefault(split, data) != data for split, data in known if data is not None)


def _splits(runs: Sequence[Run]) -> list[str | int]:
    """For each run whether its split follows its seed, or which fixed one it is. With partition_seed = 0 for
    all seeds, seed 0's looks as if it followed the seed: that it does not, other seeds of the same experiment
    tell."""
    fixed = {(_unseeded(run), seed) for run in runs if (seed := _fixed(run)) is not None}

    def split_of(run: Run) -> str | int:
        seed = _fixed(run)
        if seed is not None:
            return seed
        return run.seed if (_unseeded(run), run.seed) in fixed else FOLLOWS

    return [split_of(run) for run in runs]


def _fixed(run: Run) -> int | None:
    """The seed of the run's split where it is another than the run's own, so that the split cannot follow."""
    return None if run.experiment.partition_seed == run.seed else run.experiment.partition_seed


def _unseeded(run: Run) -> str:
    """The same for runs that differ by their seeds only."""
    return repr((run.name, sorted(_identity(run).items())))


def _identity(run: Run) -> dict[str, Any]:
    """All keys that make an experiment another one, those of the algorithm dotted: not the seeds, nor where
    it is computed, nor what else is measured of it."""
    table = plain_table(run.experiment)
    if run.sites is not None:
        table |= {key: getattr(run.sites.terms, key) for key in ("wire", "dp_noise", "dp_clip")}
    algorithm = table.pop("algorithm")
    own = {f"algorithm.{key}": value for key, value in algorithm.items()}
    left_out = ("seed", "partition_seed", "track", *HARDWARE)
    return {k: v for k, v in (table | own).items() if k not in left_out}


def _tell_apart(entries: Sequence[Entry]) -> None:
    """Labels that are given twice get what their experiments differ in, or else their folders."""
    by_label: dict[str, list[Entry]] = {}
    for entry in entries:
        by_label.setdefault(entry.label, []).append(entry)
    for label, same in by_label.items():
        if len(same) == 1:
            continue
        identities = [_identity(entry.first) for entry in same]
        keys = {key for one in identities for key in one}
        differing = sorted(key for key in keys if len({repr(one.get(key)) for one in identities}) > 1)
        for entry, one in zip(same, identities, strict=True):
            told = [f"{key.removeprefix('algorithm.')} {one[key]}" for key in differing[:2] if key in one]
            entry.label = f"{label} ({', '.join(told)})" if told else f"{label} ({entry.first.path.name})"
        if len({entry.label for entry in same}) < len(same):
            for entry in same:
                entry.label = f"{label} ({entry.first.path})"
