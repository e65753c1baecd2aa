"""An inspection for readers: text, JSON, a heat map and one self-contained HTML page."""

from pathlib import Path

from fedgela.files import write_atomically
from fedgela.inspection import Inspection
from fedgela.inspection_report.as_json import to_json
from fedgela.inspection_report.page import to_html
from fedgela.inspection_report.picture import heatmap
from fedgela.inspection_report.tables import label
from fedgela.inspection_report.text import blocks, to_text, verdict

__all__ = ["NO_PICTURES", "blocks", "heatmap", "label", "save", "to_html", "to_json", "to_text", "verdict"]

NO_PICTURES = "heatmap.png and inspect.html are left out: pip install 'fedgela[report]' adds them"


def save(found: Inspection, folder: Path) -> list[str]:
    """Write what can be written, all of it made before the first file; the files' names come back."""
    files: dict[str, str | bytes] = {"inspect.txt": to_text(found), "inspect.json": to_json(found)}
    picture = heatmap(found)
    if picture is not None:
        files |= {"heatmap.png": picture, "inspect.html": to_html(found)}
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
    return list(files)
