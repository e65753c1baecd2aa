"""What sites must agree on before they train together."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'fedgela[flower]'")

import fedgela
from fedgela.data import load_dataset
from fedgela.errors import UserError
from fedgela.flower.class_list import agreed, together
from fedgela.flower.server_app import check_possible
from fedgela.flower.site import Site
from fedgela.flower.wire import decode, encode
from flower.sites import CLASSES, Played, small, write_data

pytestmark = pytest.mark.usefixtures("quick")


def test_class_names_are_collected_where_none_are_agreed_on_and_shown(tmp_path: Path) -> None:
    whole = write_data(tmp_path, named=True)
    played = Played(tmp_path, small(whole), classes=())
    assert played.server().federation.data.class_names == CLASSES
    assert "classes, as the sites name them: cat, cow, dog, hen" in played.notes
    assert any("told the server which classes there are here" in line for line in played.logs)


def test_which_classes_a_site_has_stays_there_where_the_federation_has_a_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the server asks, and were it answered by mistake."""
    played = Played(tmp_path, small(write_data(tmp_path, named=True)))
    site = played.grid.sites[0]
    question = encode({}, played.terms.question("classes", 0, played.experiment.to_toml()))
    assert "the federation has a list of classes" in decode(site.answer(question))[1]["error"]
    monkeypatch.setattr(Site, "_classes", lambda self: ({}, {"classes": list(CLASSES)}))
    assert decode(site.answer(question))[1] == {
        "error": "its answer held what the algorithm does not declare"
    }
    played.server()
    assert "classes" not in {decode(question)[1]["task"] for _, question, _ in played.grid.seen}


def test_class_names_are_matched_without_blanks_around_them(tmp_path: Path) -> None:
    played = Played(tmp_path, small(write_data(tmp_path, named=True)), classes=())
    data = played.grid.sites[1].data
    played.grid.sites[1].data = replace(data, class_names=("cat", " cow", "dog", "hen "))
    server = played.server()
    assert server.federation.data.class_names == CLASSES
    assert "faults" not in server.step(server.begin())


def test_collected_class_names_that_cannot_be_meant_alike_are_refused() -> None:
    numbers = {"north": ["1", "0"], "east": [str(c) for c in range(12)]}
    assert together(numbers, numbered=[*numbers]) == tuple(map(str, range(12)))
    with pytest.raises(UserError, match="north has numbers for classes and east has names"):
        together({"north": ["0", "1"], "east": ["cat", "cow"]}, numbered=["north"])
    with pytest.raises(UserError, match="north has a class 'cat' and east one 'Cat', which differ in case"):
        together({"north": ["cat", "cow"], "east": ["Cat", "cow"]})


def test_labels_become_places_in_the_federations_class_list(tmp_path: Path) -> None:
    data = load_dataset(str(write_data(tmp_path, named=True)))
    turned = agreed(data, CLASSES[::-1])
    assert turned.y_train.tolist() == [3 - y for y in data.y_train.tolist()]
    with pytest.raises(UserError, match="unknown to the federation: cow"):
        agreed(data, ("cat", "dog", "hen"))
    with pytest.raises(UserError, match="labels go up to 3"):
        agreed(load_dataset(str(write_data(tmp_path))), ("a", "b"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": "0.0.0"}, f"the server has fedgela 0.0.0, this site {fedgela.__version__}"),
        ({"federation": "other"}, "of another federation"),
        ({"task": "steal"}, "there is no task 'steal'"),
        ({"run": "../../etc"}, "letters and digits"),
        ({"task": "join", "classes": CLASSES[1:]}, "another list of classes than this site's folder"),
    ],
)
def test_a_site_refuses(change: dict[str, object], told: str, whole: Path) -> None:
    played = Played(whole.parent, small(whole))
    server = played.server()
    server.step(server.begin())
    question = next(q for _, q, _ in played.grid.seen if decode(q)[1]["task"] == "train")
    groups, about = decode(question)
    assert told in decode(played.grid.sites[0].answer(encode(groups, about | change)))[1]["error"]


def test_what_no_sites_can_do_is_refused(whole: Path) -> None:
    terms = Played(whole.parent, small(whole)).terms
    for changes, why in (
        ({"algorithm": "centralised"}, "pools all data"),
        ({"track": ["angles"]}, "track: shows all classes to every local model"),
        ({"weights": "nowhere.safetensors"}, "weights: there is no file or folder nowhere.safetensors"),
        ({"weights": "."}, "weights: . is a folder; a model of this package takes a .safetensors"),
        ({"aggregation": "krum:1"}, "krum:1 needs at least 5 clients a round to outvote broken ones, not 3"),
    ):
        with pytest.raises(UserError, match=why):
            check_possible(small(whole, **changes), terms)


def test_collected_names_that_are_numbers_are_names() -> None:
    assert together({"north": ["2019", "2020"], "east": ["2018"]}) == ("2018", "2019", "2020")
    assert together({"north": ["9", "10"], "east": ["1"]}) == ("1", "9", "10")
    assert together({"north": ["01", "02"], "east": ["02", "1b"]}) == ("01", "02", "1b")


def write_table(path: Path, labels: list[str]) -> Path:
    rows = [f"{i % 7},{i % 3},{labels[i % len(labels)]}" for i in range(20)]
    path.write_text("\n".join(["age,dose,label", *rows, ""]))
    return path


def test_a_tables_numbers_are_names_where_classes_are_called_by_numbers(tmp_path: Path) -> None:
    """A site that lacks grade 3 trains its 1 and 2 as 1 and 2, and one that has all three may take part."""
    pytest.importorskip("pyarrow")
    for labels in (["1", "2"], ["1", "2", "3"], ["3", "1"]):
        data = load_dataset(str(write_table(tmp_path / "site.csv", labels)))
        turned = agreed(data, ("1", "2", "3"))
        assert turned.y_train.tolist() == [y - 1 for y in data.y_train.tolist()]
        assert agreed(data, ("3", "1", "2")).y_train.tolist() == [y % 3 for y in data.y_train.tolist()]
    with pytest.raises(UserError, match=r"the label 3 is none of the classes 0, 1, 2, 3\+"):
        agreed(data, ("0", "1", "2", "3+"))
    assert agreed(data, ("a", "b", "c", "d")).y_train.tolist() == data.y_train.tolist()


def test_an_arrays_number_that_is_a_place_and_a_name_is_refused(tmp_path: Path) -> None:
    data = load_dataset(str(write_data(tmp_path)))
    with pytest.raises(UserError, match="the class called 1 or the class at that place, 2"):
        agreed(data, ("1", "2", "3", "4"))
    assert agreed(data, ("0", "1", "2", "3+")).y_train.tolist() == data.y_train.tolist()
