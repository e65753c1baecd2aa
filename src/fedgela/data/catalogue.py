"""The data sets that are known by name: where the hub has them, and what the paper does with them."""

from dataclasses import dataclass

from fedgela.inputs import Kind


@dataclass(frozen=True)
class Source:
    """One data set of the hub, and the columns of its table that matter here."""

    hub: str  # its id
    label: str
    sample: str
    classes: int
    config: str | None = None  # of several tables under one id
    client: str | None = None  # the column of natural clients
    kind: Kind = "image"
    size: int = 32  # images are resized to squares of this side
    augment: bool = False  # as the official code does
    model: str = "resnet18"  # the paper's

    @property
    def form(self) -> str:
        """What its .npz must hold, for a user who has to make it."""
        if self.kind == "tokens":
            return "text (uint8 characters), offset (of each role in it, and the end), role (their names)"
        shape = "height, width, channels"
        clients = ", client_train, client_test (integers)" if self.client else ""
        return f"x_train, x_test (uint8 images [n, {shape}]), y_train, y_test (labels from 0){clients}"


CATALOGUE = {
    "cifar10": Source("uoft-cs/cifar10", sample="img", label="label", classes=10),
    "cifar100": Source("uoft-cs/cifar100", sample="img", label="fine_label", classes=100, augment=True),
    "svhn": Source("ufldl-stanford/svhn", sample="image", label="label", classes=10, config="cropped_digits"),
    "fed-isic2019": Source(
        "flwrlabs/fed-isic2019",
        sample="image",
        label="label",
        classes=8,
        client="center",
        size=84,
        model="efficientnet-b0",
    ),
    "femnist": Source(
        "flwrlabs/femnist",
        sample="image",
        label="character",
        classes=62,
        client="writer_id",
        size=28,
        model="simple-cnn",
    ),
    "shakespeare": Source(
        "flwrlabs/shakespeare",
        sample="x",
        label="y",
        classes=80,
        client="character_id",
        kind="tokens",
        model="lstm",
    ),
}
BUILT_IN = ("digits",)
NAMES = (*BUILT_IN, *CATALOGUE)


def known(name: str) -> Source | None:
    """The catalogue's entry for a name, in which '_' may stand for '-'."""
    return CATALOGUE.get(name.replace("_", "-"))
