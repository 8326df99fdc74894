"""Options of every engine refuse numbers that are not whole and values that do not exist, by name."""

import dataclasses
import typing

import pytest
from support.helpers import says

from unn.engine import engine_names, load_engine
from unn.errors import UnnError

OPTIONS = {name: load_engine(name).options for name in engine_names()}
WRONG = [
    (name, field.name)
    for name, options in OPTIONS.items()
    for field in dataclasses.fields(options)
    if typing.get_type_hints(options)[field.name] is int
    or typing.get_origin(typing.get_type_hints(options)[field.name]) is typing.Literal
]


@pytest.mark.parametrize(("engine", "option"), WRONG)
def test_an_option_of_another_kind_is_refused_by_name(engine, option):
    usual = OPTIONS[engine]()
    value = getattr(usual, option)
    usual.check("engine")
    wrong = value + 0.5 if isinstance(value, int) else "another"
    with pytest.raises(UnnError, match=says("engine", option, str(wrong))):
        dataclasses.replace(usual, **{option: wrong}).check("engine")
