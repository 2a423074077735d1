"""What a broker keeps of the subscriptions of a cluster, to find those that match a topic. It knows no connection: a
broker fills it from a watch or an image, and asks it for every message that it publishes."""

from .subscribers import Matched, SharedGroup, Subscribers
from .trie import FilterTrie

__all__ = ["FilterTrie", "Matched", "SharedGroup", "Subscribers"]
