"""Every verb of the SDK is tried with arguments that make no sense (``tests/e2e/test_bad_arguments.py``)."""

from __future__ import annotations

import inspect

from good_arguments import GOOD, verbs_of

import metad_client as sdk


async def test_every_verb_is_tried() -> None:
    """A verb, or a parameter, that is not in the table would never be tried."""
    found = verbs_of(sdk.connect("metad://127.0.0.1:1"))
    assert found.keys() == GOOD.keys()
    for name, verb in found.items():
        assert inspect.signature(verb).parameters.keys() - {"deadline_s"} == GOOD[name].keys(), name
