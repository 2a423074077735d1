"""The worlds that are explored."""

from __future__ import annotations

from .in_sync import Config

IN_SYNC: dict[str, Config] = {
    "ack": Config(brokers=2, replicas=(0, 1), min_isr=1, records=2, stops=1, losses=1, fences=1),
    "elr": Config(brokers=2, replicas=(0, 1), stops=3, losses=1),
    "false": Config(brokers=2, replicas=(0, 1), min_isr=1, stops=1, fences=1, elections=1),
    "isr": Config(stops=1, losses=1),
    "isr2": Config(stops=2, losses=1),
    "stale": Config(brokers=2, replicas=(0, 1), min_isr=1, stops=1, losses=1, fences=1, late=True),
    "move": Config(brokers=2, replicas=(0, 1), min_isr=1, stops=1, losses=1, groups=2, moves=1),
    "back": Config(brokers=2, replicas=(0, 1), min_isr=1, stops=1, losses=1, groups=2, moves=2, late=True),
    "lower": Config(brokers=2, replicas=(0, 1), min_isr=2, min_isr_then=1, stops=2, losses=1),
    "raise": Config(brokers=2, replicas=(0, 1), min_isr=1, min_isr_then=2, stops=2, losses=1),
    "plan": Config(replicas=(0, 1), min_isr=1, stops=1, wanted=(1, 2)),
    "plan2": Config(replicas=(0, 1), min_isr=2, stops=1, losses=1, wanted=(1, 2)),
    "planmv": Config(brokers=2, replicas=(0,), min_isr=1, stops=1, groups=2, moves=1, wanted=(1,)),
    "life": Config(brokers=2, replicas=(0, 1), min_isr=1, losses=1, elections=1),
    "repair": Config(replicas=(0, 1), min_isr=1, stops=1, repairs=1),
}
