"""Labels that are numbers, where classes have names: places in the list of classes, or names themselves."""

from collections.abc import Iterable, Sequence

from fedgela.errors import UserError


def are_names(classes: Sequence[str]) -> bool:
    """Whether classes are called by numbers that are not their places: 1, 2, 3, or 0, 1, 2a, 2."""
    return any(name.isdecimal() for name in classes) and [*classes] != [str(c) for c in range(len(classes))]


def places_of(numbers: Iterable[int], classes: Sequence[str], written: bool) -> dict[int, int]:
    """The place in `classes` that each number means.

    Where no class is called by a number, it is the number itself. Where classes are, a number `written` in a
    table is a name; one in an array is still a place, and an error where another class has it as its name.
    """
    named = are_names(classes)
    by_name = {name: place for place, name in enumerate(classes)}
    places = {}
    for number in numbers:
        place = by_name.get(str(number)) if named and written else number
        if place is None:
            raise UserError(f"the label {number} is none of the classes {', '.join(classes)}")
        if not 0 <= place < len(classes):
            raise UserError(f"labels must be from 0 to {len(classes) - 1}, the places of the classes")
        if named and by_name.get(str(number), place) != place:
            raise UserError(
                f"the label {number} may be the class called {number} or the class at that place, "
                f"{classes[place]}: add class_names to the file"
            )
        places[number] = place
    return places
