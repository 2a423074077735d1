"""The tables, a module each: its declaration, and the messages that only it has. A module that is added here is a table
that all ends know."""

import importlib
import pkgutil

from ..table import ROWS as ROWS
from ..table import TABLES as TABLES
from ..table import moving_rows as moving_rows

NAMES = [module.name for module in pkgutil.iter_modules(__path__)]
for _name in NAMES:
    importlib.import_module(f"{__name__}.{_name}")
