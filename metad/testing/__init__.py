"""A simulated cluster, and what it is made of. Everything random comes from a seeded generator that is passed in.

- :mod:`.clock`: virtual time: a queue of events
- :mod:`.network`: links that delay, lose, duplicate, reorder and break
- :mod:`.disk`: an engine whose power fails
- :mod:`.machine`: a small state machine for replicas
- :mod:`.world`: nodes with the real replicas, on those
- :mod:`.invariants`: what must hold of them at every moment
- :mod:`.linearizability`: whether what the clients saw can have happened
- :mod:`.chaos`: clients and faults, drawn by seed; :mod:`.scenarios`: situations played out by hand
- :mod:`.mutants`: bugs to plant
- :mod:`.simulate`: the command that runs seeds and mutants
"""
