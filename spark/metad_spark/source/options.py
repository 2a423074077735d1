"""What a program may say behind ``format("metad")``, checked before anything is done."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from metad_client import Options, TlsFiles, Watched
from metad_client.endpoint import scheme_of
from metad_wire.cluster import SLOTS

from .errors import OptionError
from .shapes import Shape, shape_of

_SPARKS_OWN: Final = frozenset({"path", "checkpointlocation", "queryname"})
"""Options that Spark gives to every source or sink."""
_STATED: Final = "option."


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one DataFrame."""

    source: str
    """``metad://host:port``, or a directory that ``metad-spark export`` wrote."""
    table: str
    tenant: str | None = None
    """The first field of the key, exactly."""
    prefix: str = ""
    """What the next field of the key starts with."""
    columns: str = ""
    """Names with commas; empty: all."""
    slot_ranges: int = 1
    """Into how many partitions a group is divided. Each has a moment of its own."""
    region: str = ""
    """Where the readers are: replicas of this region are read."""
    timeout_s: float = 60.0
    """A reader to which nothing is sent for so long gives up."""
    token: str = ""
    token_file: str = ""
    ca: str = ""
    certificate: str = ""
    key: str = ""
    start: str = "snapshot"
    """Of a stream without a checkpoint: ``snapshot`` or ``now``."""
    rows_max: int = 0
    """Of a stream: changes in one batch, about; 0: all that there are."""
    query: str = ""
    """Of the sink: the name of the program's work, under which a batch is written once."""
    batch: int = -1
    """Of the sink in ``foreachBatch``: the number of the batch."""
    declared: bytes = b""
    """No option: the declaration of a table that a program has declared."""
    tenants: tuple[str, ...] = ()
    """No option: several instead of ``tenant``, from the filters of a query."""
    slots: frozenset[int] | None = None
    """No option: the slots that the filters of a query leave; None: all."""

    @property
    def shape(self) -> Shape:
        """The table as columns. Raises OptionError."""
        return shape_of(self.table, self.declared)

    def watched(self, rows: Iterable[str]) -> list[Watched]:
        """What to ask the groups for: these rows of the table, of the tenants that are wanted."""
        named = tuple(rows)
        tenants = self.tenants or (self.tenant,)
        return [Watched(self.shape.table, tenant, self.prefix, rows=named) for tenant in tenants]

    @property
    def is_live(self) -> bool:
        """Whether the source is a cluster."""
        return "://" in self.source and not self.source.startswith("file://")

    @property
    def directory(self) -> Path:
        """Where the files are, if it is a directory."""
        return Path(self.source.removeprefix("file://"))

    @property
    def names(self) -> list[str]:
        """The columns that are wanted; none: all."""
        return [name.strip() for name in self.columns.split(",") if name.strip()]

    def client_options(self) -> Options:
        """Those of the SDK. Raises OptionError."""
        try:
            tls = TlsFiles(ca=self.ca, certificate=self.certificate, key=self.key) if self.ca else None
            return Options(
                region=self.region,
                credentials=self.token.encode(),
                credentials_file=self.token_file,
                tls=tls,
                client_name="metad-spark",
                connect_timeout_s=min(self.timeout_s, Options().connect_timeout_s),
            )
        except (ValueError, TypeError) as error:
            raise OptionError(str(error)) from None


_NO_OPTIONS: Final = frozenset({"declared", "tenants", "slots"})
_BY_NAME: Final = {
    field.name.replace("_", ""): field for field in msgspec.structs.fields(Settings) if field.name not in _NO_OPTIONS
}


def stated(given: Mapping[str, str]) -> dict[str, str]:
    """The ``OPTIONS`` of a ``CREATE TABLE``, of what Spark tells then: it has each of them also with a prefix, among
    properties of the table. Empty if a program has set options for one DataFrame."""
    return {name[len(_STATED) :]: text for name, text in given.items() if name.lower().startswith(_STATED)}


def settings_of(given: Mapping[str, str], *, table_needed: bool = True) -> Settings:
    """The options as Spark has them: in whatever case, with or without ``_``. Raises OptionError."""
    found: dict[str, object] = {}
    given = stated(given) or given
    for name, text in given.items():
        plain = name.lower().replace("_", "")
        if plain in _SPARKS_OWN:
            continue
        field = _BY_NAME.get(plain)
        if field is None:
            raise OptionError(f"{name}: there is no such option; there is {', '.join(_written())}")
        try:
            found[field.name] = msgspec.convert(text, field.type, strict=False)
        except msgspec.ValidationError as error:
            raise OptionError(f"{name}: {error}") from None
    path = given.get("path", "")
    if path and found.setdefault("source", path) != path:
        raise OptionError(f"source: load({path!r}) names one, and the option another")
    if not found.get("source"):
        raise OptionError('source: name a cluster or a directory, as in .load("metad://host:port")')
    if not found.get("table"):
        if table_needed:
            raise OptionError('table: name one, as in .option("table", "session")')
        found["table"] = ""
    settings = Settings(**found)  # type: ignore[arg-type]
    if not 1 <= settings.slot_ranges <= SLOTS:
        raise OptionError(f"slotRanges: from 1 to {SLOTS}, not {settings.slot_ranges}")
    if not settings.timeout_s > 0:
        raise OptionError(f"timeoutS: over 0, not {settings.timeout_s}")
    if settings.rows_max < 0:
        raise OptionError(f"rowsMax: not below 0, not {settings.rows_max}")
    if settings.start not in ("snapshot", "now"):
        raise OptionError(f"start: snapshot or now, not {settings.start!r}")
    if settings.is_live:
        try:
            scheme_of(settings.source)
        except ValueError as error:
            raise OptionError(f"source: {error}") from None
    return settings


def _written() -> Iterator[str]:
    for name in sorted(field.name for field in _BY_NAME.values()):
        first, *others = name.split("_")
        yield first + "".join(other.capitalize() for other in others)
