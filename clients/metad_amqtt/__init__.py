"""MQTT brokers that share their clients through metad, made of amqtt. A distribution of its own, ``metad-amqtt``.

A client connects to any of them, and finds its session: subscriptions, and the messages that came while it was away.

::

    async with connect("metad://127.0.0.1:7420") as m:
        broker = MetadBroker(m, "broker-1", {"listeners": {"default": {"type": "tcp", "bind": "127.0.0.1:1883"}}})
        await broker.start()

- :mod:`.broker`: amqtt's broker, with metad at its seams
- :mod:`.listening`: how connections come, and how many may be open; :mod:`.arrivals`: whose CONNECT waits
- :mod:`.kept`: what metad has of clients and brokers, and how it is written
- :mod:`.waiting`: messages for clients that are away
- :mod:`.links.routes`: who gets a message, and through which broker
- :mod:`.outbox`: what goes to one connected client
- :mod:`.links`: messages from broker to broker
"""

from metad_wire.program.extras import advice

try:
    from .broker import MetadBroker
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"metad_amqtt: {advice(missing, 'amqtt')}", name=missing.name) from None

__all__ = ["MetadBroker"]
