"""Imports keys of other systems into a cluster that serves: ``metadctl import etcd``, ``metadctl import zookeeper``.

An import has phases, each a command: *prepare* counts and writes nothing, *copy* copies and follows, *verify* compares
row by row, *cut* ends it (:mod:`.commands`). A *source* is an etcd (:mod:`.etcd`, over :mod:`.gateway`) or a ZooKeeper
(:mod:`.zookeeper`); :mod:`.source` says what they have in common. :mod:`.target` keeps in metad how far the import is,
and tells what it wrote there from what others wrote. :mod:`.copying` and :mod:`.verifying` do the work.
"""
