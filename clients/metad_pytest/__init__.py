"""The pytest plugin of metad: fixtures for tests of brokers. :mod:`metad_pytest.plugin` has them.

pytest loads it wherever metad is installed. It imports nothing of metad until a fixture is used, and needs the extra
``server`` only then.
"""
