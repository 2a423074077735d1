"""Classes for replies in protobuf, from declarations of the few fields that are read.

Requests are encoded by hand before the clock starts; replies with a thousand values are decoded in the measured time,
so the protobuf library does it, in C. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

BOOL, MESSAGE, BYTES, ENUM_AS_INT = 8, 11, 12, 5
Fields = Mapping[str, tuple[int, int, str]]
"""By name, where ``*`` at the end says repeated: number, type, and the name of the message if it is one."""


def classes(package: str, messages: Mapping[str, Fields]) -> dict[str, Any]:
    """A class for each message. Other fields that come are kept and not looked at."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, of) in fields.items():
            made = message.field.add(name=field.rstrip("*"), number=number)
            made.type = kind
            made.label = 3 if field.endswith("*") else 1
            if of:
                made.type_name = f".{package}.{of}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}")) for name in messages}
