"""The settings of a node while it runs.

What an administrator sets is kept in a file beside the node's data, and counts over the configuration file: at once,
and after each start. Only settings that are declared :class:`..config.declarations.Live` are set so. Whoever has copied
one of them listens (:attr:`Settings.listeners`); the others read :attr:`Settings.config` when they need it.
"""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from metad_wire.errors import ConflictError, InvalidRequestError, MetadError, NoRoomError, NotFoundError
from metad_wire.methods import encode
from metad_wire.operator.settings import GetSettings, NodeSetting, SetSetting, SettingsReply
from metad_wire.program.whole_file import write_whole

from .. import log_events
from ..config import Config
from ..config.checks import problems
from ..config.declarations import OF_ONE_NODE, SETTINGS, Declared, replaced, value_in
from ..config.environment import value_of
from ..config.files import NOWHERE, flat, read, toml
from ..control.host import Done
from ..errors import ConfigError, is_full
from ..logs import event, set_level
from .environment import Environment, Queue

FILE: Final = "settings.toml"
_HEAD: Final = "# Set while the node ran, by `metadctl settings set`. It counts over the configuration file.\n"
_WAITING_MAX: Final = 16
"""Requests that wait until an earlier one is on the disk: an administrator sends one after the other."""


class Settings:
    """Those of one node. ``config``: what its file, the environment and flags say. ``heed`` takes what counts instead,
    whenever that changes."""

    def __init__(self, config: Config, environment: Environment, heed: Callable[[Config], None]) -> None:
        self._configured = config
        self._environment = environment
        self.origins = NOWHERE
        """Where ``config`` is from."""
        self._path = Path(config.data_dir) / FILE if config.data_dir and config.storage.engine != "memory" else None
        self._values: dict[str, Any] = {}
        self._waiting: deque[tuple[SetSetting, Done]] = deque()
        self._is_writing = False
        self.config = config
        """What counts now."""
        self.listeners: list[Callable[[Config], None]] = [heed]
        """Told whenever another configuration counts."""
        if self._path is not None:
            self._read(self._path)

    # --- what was set in an earlier life -----------------------------------------------------------------

    def _read(self, path: Path) -> None:
        """Take what still fits: a node starts whatever another version, or somebody by hand, has written there."""
        if not path.exists():
            return
        try:
            found = flat(read(path))
        except ConfigError as error:
            event(log_events.SETTING_IGNORED, setting="all", path=str(path), reason=str(error))
            return
        for key, value in found.items():
            try:
                self._check(key)
                self._values |= {key: _typed(key, value)}
                self.config = self._with(self._values)
            except (MetadError, ConfigError) as error:
                self._values.pop(key, None)
                event(log_events.SETTING_IGNORED, setting=key, path=str(path), reason=str(error))
        if "log_level" in self._values:
            set_level(self.config.log_level)

    # --- what is asked -----------------------------------------------------------------------------------

    def get(self, body: GetSettings) -> SettingsReply:
        """Answer. Raises NotFoundError."""
        wanted = [_declared(body.setting)] if body.setting else list(SETTINGS.values())
        return SettingsReply([self._said(one) for one in wanted], self.origins.file)

    def unlike_default(self) -> dict[str, str]:
        """The settings in which all nodes should be alike, where they are not the default."""
        return {
            key: _json(value)
            for key, declared in SETTINGS.items()
            if declared.live is not None
            and declared.live.alike
            and (value := value_in(self.config, key)) != declared.default
        }

    def set(self, body: SetSetting, done: Done) -> None:
        """Set a setting, or unset it: on the disk first, then here. Raises MetadError if it does not fit."""
        if len(self._waiting) >= _WAITING_MAX:
            raise ConflictError("the disk has not taken earlier settings yet: try it again")
        self._changed(body)  # what does not fit does not wait
        self._waiting.append((body, done))
        self._next()

    def _next(self) -> None:
        if self._is_writing or not self._waiting:
            return
        body, done = self._waiting.popleft()
        try:
            values = self._changed(body)
        except MetadError as error:
            done(error)
            self._environment.call_soon(self._next)
            return
        self._is_writing = True

        def written(error: BaseException | None) -> None:
            self._is_writing = False
            if isinstance(error, OSError):
                why = f"{self._path} cannot be written: {error.strerror}"
                done(NoRoomError(why) if is_full(error) else ConflictError(why))
            elif error is not None:
                raise error
            else:
                self._take(body, values)
                done(encode(self.get(GetSettings(body.setting))))
            self._next()

        if self._path is None:
            written(None)
        else:
            self._environment.beside(partial(_write, self._path, values), written, Queue.SYNCS)

    def _changed(self, body: SetSetting) -> dict[str, Any]:
        """All that is set at run time, with this. Raises MetadError."""
        key = self._check(body.setting).key
        values = {name: value for name, value in self._values.items() if name != key}
        if body.value is not None:
            try:
                values[key] = value_of(key, key, body.value)
            except ConfigError as error:
                raise InvalidRequestError(str(error)) from None
        self._with(values)
        return values

    def _check(self, key: str) -> Declared:
        """Raises NotFoundError, ConflictError."""
        declared = _declared(key)
        if declared.live is None:
            where = self.origins.file or "a file for `metad serve --config`"
            raise ConflictError(f"{key} needs a restart: set it in {where}, and start the node again")
        return declared

    def _with(self, values: dict[str, Any]) -> Config:
        """Raises InvalidRequestError where they do not fit."""
        made = replaced(self._configured, values)
        for problem in problems(made):
            raise InvalidRequestError(problem)
        return made

    def _take(self, body: SetSetting, values: dict[str, Any]) -> None:
        before, self._values, self.config = self.config, values, self._with(values)
        value = value_in(self.config, body.setting)
        event(log_events.SETTING_SET, setting=body.setting, value=_json(value), source=self._source(body.setting))
        if self.config.log_level != before.log_level:
            set_level(self.config.log_level)
        for listener in tuple(self.listeners):
            listener(self.config)

    def _said(self, declared: Declared) -> NodeSetting:
        key, live = declared.key, declared.live
        value, configured = value_in(self.config, key), value_in(self._configured, key)
        least, most = (0.0, 0.0) if live is None else (live.least, live.most)
        return NodeSetting(
            key,
            _json(value),
            self._source(key),
            _json(configured),
            _json(declared.default),
            live is not None,
            least,
            most,
            key in OF_ONE_NODE,
        )

    def _source(self, key: str) -> str:
        if key in self._values:
            return "run time"
        if value_in(self._configured, key) == SETTINGS[key].default:
            return "default"
        return self.origins.given.get(key, "program")


def _declared(key: str) -> Declared:
    if (declared := SETTINGS.get(key)) is not None:
        return declared
    like = difflib.get_close_matches(key, SETTINGS, 1) or [one for one in SETTINGS if one.endswith(f".{key}")]
    hint = f"; did you mean {like[0]}?" if like else ""
    raise NotFoundError(f"there is no setting {key}{hint}")


def _typed(key: str, value: Any) -> Any:
    try:
        return msgspec.convert(value, SETTINGS[key].type)
    except msgspec.ValidationError as error:
        raise InvalidRequestError(f"{key}: {error}") from None


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _write(path: Path, values: dict[str, Any]) -> None:
    """Raises OSError."""
    lines = [f"{key} = {toml(value)}\n" for key, value in sorted(values.items())]
    write_whole(path, "".join([_HEAD, *lines]).encode())
