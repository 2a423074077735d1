"""A simulated cluster, and what it is made of. Everything random comes from a seeded generator that is passed in.

``python tests/simulate.py`` runs seeds and mutants with it; :mod:`.stock` shows what pysyncobj does as it stands.

- :mod:`.replicas`: replicas alone. ``world`` runs them, ``chaos`` draws faults, ``scenarios`` are written by hand.
- :mod:`.nodes`: whole nodes and SDK clients. ``cluster`` runs them, ``trouble`` draws faults, ``scenarios`` are written
  by hand.
- :mod:`metad_judge`: what must hold of a group at every moment, and of what clients were told
- :mod:`.mutants`: bugs to plant
- :mod:`.disk`, :mod:`.faults`: what replicas alone and whole nodes share: a disk that fails, and how faults are drawn
"""
