"""The filters of a page: a plain form. So the address of a page says what it shows, and the keyboard just works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from nicegui import ui

from .frame import tag

TEXT_CHARS_MAX: Final = 2_000
"""Longer than any key of a record."""


class Field(NamedTuple):
    """One field. With ``choices`` it is a list to choose from."""

    name: str
    label: str
    value: str = ""
    choices: Sequence[str] = ()
    hint: str = ""


def filters(path: str, fields: Sequence[Field], does: str = "Show") -> dict[str, ui.element]:
    """Build the form: it leads to ``path`` with the fields as its query. Gives the fields by name."""
    made = dict[str, ui.element]()
    with tag("form", classes="filters", method="get", action=path, role="search", autocomplete="off"):
        for field in fields:
            with tag("label", field.label):
                made[field.name] = _choice(field) if field.choices else _text(field)
        tag("button", does, classes="plain primary", type="submit")
    return made


def _choice(field: Field) -> ui.element:
    with tag("select", name_=field.name) as made:
        for choice in field.choices:
            option = tag("option", choice or "any", value=choice)
            if choice == field.value:
                option.props["selected"] = True
    return made


def _text(field: Field) -> ui.element:
    made = tag("input", name_=field.name, maxlength=str(TEXT_CHARS_MAX), spellcheck="false", placeholder=field.hint)
    # Not `value`: what a person types would be lost when the page is drawn again.
    made.props["defaultValue"] = field.value
    return made
