"""Trained models in use: what is exported and predicted is what the run measured."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fedgela.config import parse_experiment
from fedgela.deploy import Card, Model, load_model
from fedgela.deploy.export import export
from fedgela.deploy.samples import read_samples
from fedgela.errors import UserError
from fedgela.evaluation import Record
from fedgela.inputs import InputSpec
from fedgela.report.saved_models import ask_client
from fedgela.resolve import resolve
from fedgela.runfolder import RunFolder
from fedgela.runs import run
from fedgela.saved.federation import federation_of
from fedgela.saved.runs import find_runs
from helpers import Cli, listing, tiny, tiny_arrays

METHODS = {
    "fedgela": {"name": "fedgela", "E_W": 25.0},
    "fedgela-present": {"name": "fedgela", "phi": "paper-sqrt", "personal_prediction": "present"},
    "fedavg": {"name": "fedavg"},
    "fedrep": {"name": "fedrep"},
    "fedrod": {"name": "fedrod"},
    "fedproto": {"name": "fedproto"},
    "local": {"name": "local"},
}
PROTOTYPES = {"name": "fedproto", "prediction": "prototype"}  # later ones than at the time of the last visit


@pytest.fixture(scope="session")
def trained(npz: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of every kind of method."""
    folder = tmp_path_factory.mktemp("trained")
    methods = METHODS | {"prototypes": PROTOTYPES}
    for name, algorithm in methods.items():
        run(tiny(npz, algorithm=algorithm, sample=3), folder / name)
    return {name: folder / name for name in methods}


def accuracy(path: Path, client: int | None) -> Record:
    """In percent: of a model of a run on the test samples that count for it."""
    federation = resolve(RunFolder(path).experiment())[1]
    data = federation.data
    samples = slice(None) if client is None else federation.test[client]
    found = load_model(path, client).probabilities(data.x_test[samples])
    assert torch.allclose(found.sum(dim=1), torch.ones(len(found)))
    return 100 * float((found.argmax(dim=1) == data.y_test[samples]).double().mean())


@pytest.mark.parametrize("method", ["fedgela", "fedavg", "fedrod"])
def test_the_global_model_has_the_runs_GA(trained: dict[str, Path], method: str) -> None:
    result = RunFolder(trained[method]).result()
    assert result is not None
    assert accuracy(trained[method], None) == pytest.approx(result["GA"]["last"])


@pytest.mark.parametrize("method", METHODS)
def test_the_personal_models_have_the_runs_PA(trained: dict[str, Path], method: str) -> None:
    result = RunFolder(trained[method]).result()
    assert result is not None
    mean = np.mean([accuracy(trained[method], k) for k in range(4)])
    assert mean == pytest.approx(result["PA"]["last"])


def test_a_report_asks_a_client_the_same_model(trained: dict[str, Path]) -> None:
    (run,) = find_runs([trained["prototypes"]], print)
    federation = federation_of(run.experiment)
    answers = ask_client(run, federation, 1)
    x = federation.data.x_test[federation.test[1]]
    assert torch.equal(answers.predicted, load_model(run.path, 1).probabilities(x).argmax(dim=1))


def test_the_best_round(trained: dict[str, Path]) -> None:
    result = RunFolder(trained["fedavg"]).result()
    assert result is not None
    assert load_model(trained["fedavg"], round="best").card.round == result["GA"]["best_round"]
    with pytest.raises(UserError, match="keep their last model only"):
        load_model(trained["fedgela"], 0, "best")


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
@pytest.mark.parametrize(("method", "client"), [("fedgela", None), ("fedgela", 2), ("prototypes", 1)])
def test_an_exported_file_answers_as_the_run_does(
    trained: dict[str, Path], tmp_path: Path, suffix: str, method: str, client: int | None
) -> None:
    if suffix == ".onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    out = tmp_path / "new" / f"model{suffix}"
    card, _ = export(trained[method], out, client)
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    original, written = load_model(trained[method], client), load_model(out)
    assert written.card == original.card == card
    x = torch.randint(256, (300, 1, 8, 8), dtype=torch.uint8)
    for n in (1, 2, 300):
        torch.testing.assert_close(
            written.probabilities(x[:n]), original.probabilities(x[:n]), rtol=0, atol=1e-5
        )
    assert written.probabilities(x[:0]).shape == (0, 4)


@pytest.mark.parametrize("suffix", [".pt2", ".onnx"])
def test_a_full_disk_is_told_with_the_file(trained: dict[str, Path], tmp_path: Path, suffix: str) -> None:
    if suffix == ".onnx":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnxscript")
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))  # bytes that any file may have
    try:
        with pytest.raises(OSError, match=rf"model\{suffix}'$"):
            export(trained["fedgela"], tmp_path / f"model{suffix}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_a_pt2_file_needs_nothing_of_this_package(trained: dict[str, Path], tmp_path: Path) -> None:
    export(trained["fedgela"], tmp_path / "model.pt2", 0)
    program = (
        "import sys; sys.modules['fedgela'] = None\n"
        "import torch; p = torch.export.load('model.pt2').module()\n"
        "print(tuple(p(torch.zeros(5, 1, 8, 8, dtype=torch.uint8)).shape))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout == "(5, 4)\n"


def test_other_kinds_of_data_and_models_are_exported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = np.arange(60) % 3
    features = tmp_path / "features.npz"
    np.savez(features, x=rng.normal(size=(60, 5)) + y[:, None], y=y)
    settings = {"partition": "iid", "clients": 2, "rounds": 1, "batch_size": 5, "projection": 4}
    run(tiny(features, **settings), tmp_path / "mlp")
    export(tmp_path / "mlp", tmp_path / "mlp.pt2")
    samples = read_samples(features, load_model(tmp_path / "mlp.pt2").card.input, ("0", "1", "2"))
    assert load_model(tmp_path / "mlp.pt2").probabilities(samples.x).shape == (60, 3)
    norm = {"algorithm": {"name": "fedgela", "feature_norm": "batchnorm"}}
    run(tiny(features, **settings, **norm), tmp_path / "norm")
    export(tmp_path / "norm", tmp_path / "norm.pt2")
    one = samples.x[:1]
    torch.testing.assert_close(
        load_model(tmp_path / "norm.pt2").probabilities(one), load_model(tmp_path / "norm").probabilities(one)
    )


def test_features_far_from_zero_have_the_same_answers_in_every_format(tmp_path: Path) -> None:
    """Years, times and the like: large numbers that are close together."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    rng = np.random.default_rng(0)
    x, y = 1e6 + rng.normal(size=(60, 5)), np.arange(60) % 3
    np.savez(tmp_path / "features.npz", x=x, y=y)
    settings = {"partition": "iid", "clients": 2, "rounds": 1, "batch_size": 5, "lr": 0.05}
    run(tiny(tmp_path / "features.npz", **settings), tmp_path / "run")
    export(tmp_path / "run", tmp_path / "model.onnx")
    own, written = load_model(tmp_path / "run"), load_model(tmp_path / "model.onnx")
    torch.testing.assert_close(written.probabilities(x), own.probabilities(x), rtol=0, atol=1e-5)


class Normed(torch.nn.Module):
    """A net with BatchNorm, which never travels where it is local."""

    def __init__(self, spec: object) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(64)
        self.layer = torch.nn.Linear(64, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(self.norm(x.flatten(1))).relu()


def test_a_client_that_never_trained_is_fine_tuned_from_the_weights_own_batchnorm(
    npz: Path, tmp_path: Path
) -> None:
    norm = Normed(None)
    norm.norm.running_mean.normal_(generator=torch.Generator().manual_seed(0))
    save_file(norm.state_dict(), tmp_path / "weights.safetensors")
    e = tiny(
        npz,
        algorithm={"name": "fedavg"},
        model="deploy.test_deploy:Normed",
        batchnorm="local",
        weights=str(tmp_path / "weights.safetensors"),
        sample=1,
        rounds=1,
        epochs=1,
        finetune_epochs=1,
    )
    told = run(e, tmp_path / "run")["finetuned"]["last"]["by_client"]
    _, federation = resolve(e)
    for client, accuracy in enumerate(told):
        mine = federation.test[client]
        x, y = federation.data.x_test[mine], federation.data.y_test[mine]
        right = load_model(tmp_path / "run", client=client).probabilities(x).argmax(dim=1) == y
        assert 100 * right.double().mean().item() == pytest.approx(accuracy)


class Choosy(torch.nn.Module):
    """A net whose steps depend on what it sees."""

    def __init__(self, spec: object) -> None:
        super().__init__()
        self.width = 64
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.layer(x.flatten(1))
        return z if float(z.detach().sum()) > 0 else -z


def test_a_model_that_cannot_be_exported_is_told_so(
    npz: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run(tiny(npz, model="test_deploy:Choosy", engine="eager", rounds=1), tmp_path / "run")
    with pytest.raises(UserError, match=r"this model cannot be exported \(.*`fedgela predict RUN` can"):
        export(tmp_path / "run", tmp_path / "model.pt2")
    assert capfd.readouterr().err == ""  # and nothing of PyTorch's
    assert load_model(tmp_path / "run").probabilities(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).shape == (
        2,
        4,
    )
    assert not list(tmp_path.glob("model*"))


def test_samples_that_are_not_as_in_the_data_are_refused(trained: dict[str, Path]) -> None:
    model = load_model(str(trained["fedgela"]))
    images = np.random.default_rng(0).integers(0, 256, (3, 1, 8, 8), dtype=np.uint8)
    assert torch.equal(model.probabilities(images), model.probabilities(torch.from_numpy(images)))
    for wrong in (images / 255, images.astype(np.int64), images[:, 0], images.transpose(0, 2, 3, 1)):
        with pytest.raises(UserError, match=r"the model takes uint8 \[n, 1, 8, 8\], not "):
            model.probabilities(wrong)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_features_that_are_no_numbers_are_refused(value: float) -> None:
    spec = InputSpec("features", (2,))
    model = Model(Card("FedAvg", None, 1, spec, ("a", "b"), ""), lambda x: x.softmax(dim=1))
    with pytest.raises(UserError, match="no finite number in float32: row 1, column 0"):
        model.probabilities(np.array([[1.0, 2.0], [value, 1.0]]))


def test_a_model_that_diverged_is_refused(npz: Path, tmp_path: Path) -> None:
    run(tiny(npz, lr=1e30, algorithm="fedavg"), tmp_path / "run")
    images = np.load(npz)["x_test"].reshape(-1, 1, 8, 8)
    with pytest.raises(UserError, match="the model of round 3 answers with NaN: its weights became infinite"):
        load_model(tmp_path / "run").probabilities(images)
    with pytest.raises(UserError, match="answers with NaN"):
        export(tmp_path / "run", tmp_path / "model.pt2")
    assert not (tmp_path / "model.pt2").exists()


def test_an_exported_program_needs_no_gradients(trained: dict[str, Path], tmp_path: Path) -> None:
    export(trained["fedgela"], tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    assert program(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).numpy().shape == (2, 4)


# -- whose model -----------------------------------------------------------------------------------


def test_what_a_run_does_not_have(trained: dict[str, Path], tmp_path: Path, npz: Path) -> None:
    with pytest.raises(UserError, match="round: last or best, not 2"):
        load_model(trained["fedgela"], round=2)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="FedRep has no global model"):
        load_model(trained["fedrep"])
    with pytest.raises(UserError, match="there are clients 0 to 3, not 4"):
        load_model(trained["fedgela"], 4)
    with pytest.raises(UserError, match=r"seed-0: there is no such folder; .*fedgela is a run by itself$"):
        load_model(trained["fedgela"] / "seed-0")
    with pytest.raises(UserError, match=r"holds 8 runs, give one of them: .*, \.\.\."):
        load_model(trained["fedgela"].parent)
    run(tiny(npz, algorithm={"name": "centralised"}, rounds=1), tmp_path / "centralised")
    with pytest.raises(UserError, match="Centralised has no personal models"):
        load_model(tmp_path / "centralised", 0)


def test_a_damaged_checkpoint_is_passed_over_and_left_as_it_is(npz: Path, tmp_path: Path) -> None:
    run(tiny(npz), tmp_path / "run")
    newest = max((tmp_path / "run/checkpoints").iterdir())
    newest.write_bytes(newest.read_bytes()[:-1])
    before = listing(tmp_path / "run")
    assert load_model(tmp_path / "run").card.round == 2
    assert listing(tmp_path / "run") == before
    for path in (tmp_path / "run/checkpoints").iterdir():
        path.write_bytes(b"garbage")
    with pytest.raises(UserError, match="run: of 2 checkpoints none is sound"):
        load_model(tmp_path / "run")
    for path in (tmp_path / "run/checkpoints").iterdir():
        path.unlink()
    with pytest.raises(UserError, match="there is no checkpoint"):
        load_model(tmp_path / "run")


def test_other_data_than_the_runs_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", **tiny_arrays())
    run(tiny(tmp_path / "data.npz", rounds=1), tmp_path / "run")
    np.savez(tmp_path / "data.npz", **tiny_arrays(seed=1))
    with pytest.raises(UserError, match="no longer what the run was trained on"):
        load_model(tmp_path / "run")


def test_files_that_are_no_models(
    trained: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UserError, match=r"there is no such file"):
        load_model(tmp_path / "model.pt2")
    for suffix in (".pt2", ".onnx"):
        if suffix == ".onnx":
            pytest.importorskip("onnxruntime")
        (tmp_path / f"model{suffix}").write_bytes(b"no model")
        with pytest.raises(UserError, match=f"cannot be read as an? {suffix} file"):
            load_model(tmp_path / f"model{suffix}")
    assert "Traceback" not in caplog.text
    with pytest.raises(UserError, match=r"ending in \.onnx or \.pt2, not 'model.h5'"):
        export(trained["fedgela"], tmp_path / "model.h5")

    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    torch.export.save(torch.export.export(Double(), (torch.zeros(1),)), tmp_path / "other.pt2")
    with pytest.raises(UserError, match="it is not of `fedgela export`"):
        load_model(tmp_path / "other.pt2")


# -- the commands ----------------------------------------------------------------------------------


def test_export_and_predict(trained: dict[str, Path], npz: Path, tmp_path: Path, command: Cli) -> None:
    model = tmp_path / "model.pt2"
    code, out, _ = command("export", trained["fedgela"], "--out", model)
    assert code == 0
    assert out.startswith("the global model of FedGELA, round 3: image of shape 1x8x8, 4 classes\n")
    result = RunFolder(trained["fedgela"]).result()
    assert result is not None
    code, out, _ = command("predict", model, npz, "--out", tmp_path / "new/p.csv")
    assert code == 0
    assert f"right: {result['GA']['last']:.2f} %" in out
    lines = (tmp_path / "new/p.csv").read_text().splitlines()
    assert lines[0] == "sample,predicted,probability,label,p(0),p(1),p(2),p(3)"
    assert len(lines) == 31
    fields = lines[1].split(",")
    chances = [float(field) for field in fields[4:]]
    assert fields[1] == str(int(np.argmax(chances)))
    assert sum(chances) == pytest.approx(1, abs=1e-5)
    code, out, _ = command("predict", trained["fedrep"], npz, "--client", 1)
    assert code == 0
    assert "... and 10 more: --out FILE.csv writes all" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--round", "first"], "--round: last or best, not 'first'"),
        (["--client", "7"], "--client: there is no client '7'; there are clients 0 to 3"),
        (["--out", "{npz}/p.csv"], "is a file, not a folder"),
    ],
)
def test_mistakes_are_told_in_a_line(
    trained: dict[str, Path],
    npz: Path,
    command: Cli,
    arguments: list[str],
    said: str,
) -> None:
    filled = [argument.format(npz=npz) for argument in arguments]
    code, out, err = command("predict", trained["fedgela"], npz, *filled)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_samples_that_were_trained_on_are_told(by_hospital: Path, tmp_path: Path, command: Cli) -> None:
    data, model, part = by_hospital.parent / "data.csv", tmp_path / "model.pt2", tmp_path / "part.csv"
    federation = federation_of(RunFolder(by_hospital).experiment())
    right = (
        load_model(by_hospital).probabilities(federation.data.x_test).argmax(dim=1) == federation.data.y_test
    )
    told = (
        f"48 of them were trained on, which flatters the model; of the other 12, {int(right.sum())} are right"
    )
    export(by_hospital, model)
    for asked in (by_hospital, model):
        assert told in command("predict", asked, data)[1]
    lines = data.read_text().splitlines()
    part.write_text("\n".join([lines[0], "0.5,1,sick,Bern", *lines[1:5]]) + "\n")  # a fifth is for testing
    assert (
        "4 of them were trained on, which flatters the model; of the other 1, "
        in command("predict", by_hospital, part)[1]
    )
    part.write_text("\n".join([lines[0], "0.5,1,sick,Bern"]) + "\n")
    assert "trained on" not in command("predict", by_hospital, part)[1]
    part.write_text("\n".join(lines[:5]) + "\n")
    assert command("predict", by_hospital, part)[1].endswith("which flatters the model\n")


def test_a_run_knows_its_training_images(tmp_path: Path, command: Cli) -> None:
    image = pytest.importorskip("PIL.Image")
    rng, photos = np.random.default_rng(0), tmp_path / "photos"
    for name in ("cat", "dog"):
        (photos / name).mkdir(parents=True)
        for i in range(5):
            image.fromarray(rng.integers(0, 255, (20, 30), dtype=np.uint8)).save(photos / name / f"{i}.png")
    experiment = {"dataset": str(photos), "partition": "iid", "clients": 2, "rounds": 1, "image_size": 8}
    small = {"epochs": 1, "batch_size": 2, "device": "cpu", "algorithm": "fedgela"}
    run(parse_experiment(experiment | small), tmp_path / "run")
    export(tmp_path / "run", tmp_path / "model.pt2")
    for model in ("run", "model.pt2"):
        out = command("predict", tmp_path / model, photos)[1]
        assert "8 of them were trained on, which flatters the model; of the other 2, " in out
    (photos / "cat/damaged.png").write_bytes(b"nothing")
    out = command("predict", tmp_path / "model.pt2", photos, "--skip-unreadable")[1]
    assert "8 of them were trained on, which flatters the model; of the other 2, " in out


def test_neither_samples_nor_data_nor_runs_are_written_over(
    by_hospital: Path, tmp_path: Path, command: Cli
) -> None:
    data, config = by_hospital.parent / "data.csv", by_hospital / "config.toml"
    samples, photos, model = tmp_path / "new.csv", tmp_path / "photos", tmp_path / "model.pt2"
    samples.write_bytes(data.read_bytes())
    photos.mkdir()
    export(by_hospital, model)
    held = {path: path.read_bytes() for path in (data, config, samples, model)}
    for read, asked, out in (
        (by_hospital, data, data),
        (by_hospital, samples, samples),
        (by_hospital, samples, data),
        (by_hospital, samples, config),
        (by_hospital, samples, by_hospital / "checkpoints/p.csv"),
        (by_hospital, photos, photos / "p.csv"),
        (model, samples, samples),
        (model, samples, model),
    ):
        code, told, err = command("predict", read, asked, "--out", out)
        assert (code, told) == (2, "") and err.startswith(f"fedgela: --out: {out} "), err
        assert err.count("\n") == 1
    with pytest.raises(UserError, match=r"lies in .*models, which this command reads"):
        export(by_hospital, by_hospital / "models/m.pt2")
    assert {path: path.read_bytes() for path in held} == held
    assert command("predict", by_hospital, samples, "--out", by_hospital / "p.csv")[0] == 0


@pytest.fixture(scope="module")
def by_hospital(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on three clients that the data calls by their names, with columns that have names too."""
    pytest.importorskip("pyarrow")
    folder = tmp_path_factory.mktemp("hospitals")
    rng = np.random.default_rng(0)
    lines = ["age,dose,label,client"]
    for hospital in ("Ulm", "Zürich", "Aachen"):
        lines += [
            f"{rng.normal() + i % 2:.3f},{i % 2},{'sick' if i % 2 else 'well'},{hospital}" for i in range(20)
        ]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    experiment = {"dataset": str(folder / "data.csv"), "rounds": 1, "epochs": 1, "batch_size": 5}
    run(parse_experiment({**experiment, "device": "cpu", "algorithm": "fedgela"}), folder / "run")
    return folder / "run"


def test_a_client_is_found_by_its_name(by_hospital: Path, tmp_path: Path) -> None:
    for client in ("Zürich", "#2", "2", 2):
        card = load_model(by_hospital, client).card
        assert (card.client, card.client_name, card.features) == (2, "Zürich", ("age", "dose"))
    assert "client 2 (Zürich) of FedGELA" in str(card)
    with pytest.raises(UserError, match=r"no client 'Zurich'; there are Aachen, Ulm, Zürich \(did you mean"):
        load_model(by_hospital, "Zurich")
    export(by_hospital, tmp_path / "m.pt2", "Ulm")
    assert load_model(tmp_path / "m.pt2").card == load_model(by_hospital, "Ulm").card


def test_an_id_of_the_data_is_not_a_number(tmp_path: Path) -> None:
    arrays = tiny_arrays()
    for part in ("train", "test"):
        arrays[f"client_{part}"] = 1 + np.arange(len(arrays[f"y_{part}"])) % 3
    np.savez(tmp_path / "ids.npz", **arrays)
    experiment = tiny(tmp_path / "ids.npz", partition="natural", clients=None, rounds=1)
    run(experiment, tmp_path / "run")
    assert load_model(tmp_path / "run", "3").card.client == 2
    assert load_model(tmp_path / "run", "#1").card.client_name == "id 2"
    with pytest.raises(UserError, match="no client '0'; there are 1, 2, 3, or by number #0 to #2"):
        load_model(tmp_path / "run", "0")
