"""``metadctl export`` and ``metadctl import``: the records of a cluster that serves, as files for other programs."""
