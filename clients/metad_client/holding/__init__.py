"""A lease that is held: kept alive by itself, with locks that go with it."""
