"""What the server refuses to store, for a program that checks before it calls. An item over a limit has an
InvalidItemError, and the others are carried out; an argument that all items share raises InvalidRequestError.

- ``KEY_BYTES_MAX``: all key fields of one record together (tenant and client id; namespace and key; tenant, group and
  topic), UTF-8 encoded, with a few bytes between them. To be safe, leave 64 bytes.
- ``VALUE_BYTES_MAX``: the payload of a session with its will, the metadata of an offset, the value of a key
- ``BROKER_BYTES_MAX``: the name of a broker, UTF-8 encoded
- ``GENERATION_MAX``: a consumer group's generation
- ``TRANSACTION_ITEMS_MAX``: each list of one transaction
- ``BATCH_ITEMS_MAX``: items of one request. A ``*_many`` call may have any number: the SDK cuts it. The setting is
  ``Options.batch_items``.
- ``LIST_LIMIT_MAX``: the ``page_size`` of a listing
- ``DEADLINE_S_MAX``: a deadline, in seconds
"""

from metad_wire.messages import (
    BATCH_ITEMS_MAX,
    BROKER_BYTES_MAX,
    GENERATION_MAX,
    KEY_BYTES_MAX,
    LIST_LIMIT_MAX,
    TRANSACTION_ITEMS_MAX,
    VALUE_BYTES_MAX,
)

from .options import DEADLINE_S_MAX

__all__ = [
    "BATCH_ITEMS_MAX",
    "BROKER_BYTES_MAX",
    "DEADLINE_S_MAX",
    "GENERATION_MAX",
    "KEY_BYTES_MAX",
    "LIST_LIMIT_MAX",
    "TRANSACTION_ITEMS_MAX",
    "VALUE_BYTES_MAX",
]
