"""Key-value records within namespaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from zlib import crc32

from .. import messages as m
from ..key import text, text2
from ..method import Lane
from ..table import Keys, Shown, Table


def _crcs(items: Sequence[Any]) -> Iterable[int]:
    names = [item.namespace for item in items]
    known = {name: crc32(text(name)) for name in set(names)}
    return map(known.__getitem__, names)


def _keys(items: Sequence[Any]) -> Keys:
    # 100,000 puts a second pass here: text2 is spelled out, with one check for all of them.
    keys = [f"{item.namespace}\0\x01{item.key}\0\x01".encode() for item in items]
    if b"".join(keys).count(0) != 2 * len(keys):
        keys = [text2(item.namespace, item.key) for item in items]
    return keys, _crcs(items)


def _key_bytes(item: Any) -> int:
    if not isinstance(item, m.KvTransaction):
        return len(text2(item.namespace, item.key))
    named = [compare.key for compare in item.compares]
    named += [operation.key for operation in (*item.then, *item.otherwise)]
    named += item.reads
    return len(text(item.namespace)) + max((len(text(key)) for key in named), default=0)


def _value_bytes(item: Any) -> int:
    if isinstance(item, m.KvTransaction):
        return max((len(o.value) for o in (*item.then, *item.otherwise) if o.value is not None), default=0)
    return len(item.value) if isinstance(item, m.KvPutItem) else 0


KV = Table(
    "kv",
    kind="data",
    rows={"record": 0x30},
    record=m.Kv,
    key=("namespace", "key"),
    routing=("namespace",),
    key_bytes=_key_bytes,
    value_bytes=_value_bytes,
    shows={"record": Shown(m.KvKey, m.Kv, counted=True)},
    crcs=_crcs,
    keys=_keys,
)
KV_GET = KV.gets(0x0301, "get", m.KvKey, m.Kv, "Each key as it is.")
KV_PUT = KV.writes(0x0302, "put", m.KvPut, m.KvPutReply, Lane.RECORDS)
KV_DELETE = KV.writes(0x0303, "delete", m.KvDelete, m.WriteReply, Lane.RECORDS)
KV_SCAN = KV.lists(0x0304, "scan", m.KvScan, m.Kv, "Keys of a namespace that start with ``prefix``, in order.")
KV_TRANSACT = KV.writes(0x0305, "transact", m.KvTransact, m.KvTransactReply, Lane.RECORDS)
