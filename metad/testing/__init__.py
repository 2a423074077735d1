"""What a simulated cluster is made of. Everything random comes from a seeded generator that is passed in.

- :mod:`.clock`: virtual time: a queue of events
- :mod:`.network`: links that delay, lose, duplicate, reorder and break
- :mod:`.disk`: an engine whose power fails
- :mod:`.linearizability`: whether what the clients saw can have happened
"""
